import pytest
import torch

from rlhf_ray.optim import adam as optimizers


@pytest.mark.parametrize(("name", "fused"), [("Adam", False), ("AdamW", True)])
def test_they_step_bit_for_bit_as_torchs_own(name: str, fused: bool) -> None:
    weights = []
    for kind in (getattr(torch.optim, name), getattr(optimizers, name)):
        torch.manual_seed(0)
        network = torch.nn.Linear(3, 2)
        optimizer = kind(network.parameters(), lr=0.1, fused=fused)
        for step in range(4):
            if step == 2:
                kept = optimizer.state_dict()
                optimizer = kind(network.parameters(), lr=0.1, fused=fused)
                optimizer.load_state_dict(kept)
            optimizer.zero_grad(set_to_none=True)
            (network(torch.ones(5, 3)) ** 2).mean().backward()
            optimizer.step()
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()
        weights.append(torch.cat([parameter.detach().flatten() for parameter in network.parameters()]))
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=0)
