"""The panel: a static folder that opens from the file system, without network, and shows an agent's internals."""

from rlhf_ray.interpret.agent.panel.data import PanelData, PanelPair, PanelRollout, PanelSaliency
from rlhf_ray.interpret.agent.panel.write import write_panel

__all__ = ["PanelData", "PanelPair", "PanelRollout", "PanelSaliency", "write_panel"]
