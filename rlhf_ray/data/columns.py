"""Arrays as Arrow columns, and memory-mapped columns as arrays without a copy."""

import numpy as np
import pyarrow as pa

from rlhf_ray.data.arrays import Array


def to_column(values: Array) -> pa.Array | Array:
    """Convert ``[n, …]`` to ``n`` fixed-shape tensors; ``[n]`` needs no conversion."""
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values)) if values.ndim > 1 else values


def to_lists(values: Array) -> pa.Array:
    """Convert ``[n, …]`` to ``n`` nested lists of the same dtype, which every reader of Arrow and Parquet knows."""
    nested = pa.array(np.ascontiguousarray(values).reshape(-1))
    for i in range(values.ndim - 1, 0, -1):
        count = int(np.prod(values.shape[:i]))
        nested = pa.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32) * values.shape[i], nested)
    return nested


def to_array(table: pa.Table, name: str) -> Array:
    """Return the column ``name`` as an array: a view of the table's memory, except for booleans.

    Raises:
        ValueError: the column has several chunks, or nulls.
        KeyError: there is no such column.
    """
    column = table[name]
    if column.num_chunks != 1:
        raise ValueError(f"column {name} has {column.num_chunks} chunks instead of 1")
    chunk = column.chunk(0)
    if chunk.null_count:
        raise ValueError(f"column {name} has nulls")
    if isinstance(chunk.type, pa.FixedShapeTensorType):
        tensors: Array = chunk.to_numpy_ndarray()
        return tensors
    if pa.types.is_dictionary(chunk.type):
        return np.array(chunk.dictionary.to_pylist())[to_array(pa.table({name: chunk.indices}), name)]
    # The chunk's to_numpy() would import pandas, which takes longer than reading a store.
    content = np.frombuffer(chunk.buffers()[1], np.uint8)
    if pa.types.is_boolean(chunk.type):
        return np.unpackbits(content, count=len(chunk), bitorder="little").astype(bool)
    values: Array = content.view(chunk.type.to_pandas_dtype())
    return values[: len(chunk)]
