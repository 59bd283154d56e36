#!/usr/bin/env python3
"""Writes the small ONNX models and expected values of tests/data/ort.

Written with onnx 1.23.2 and numpy 2.4.6; seeds 7 and 8. qnn_op_trace.json in unsupported/ is what the QNN
provider 2.7.0 (QAIRT 2.51) wrote for qdq_unsupported.onnx. Usage: ort_models.py OUT_FOLDER
"""
import pathlib
import sys

import numpy as np
from onnx import TensorProto as T
from onnx import helper as H
from onnx import numpy_helper as NH


def value(name, dtype, shape):
    return H.make_tensor_value_info(name, dtype, shape)


def save(out, name, nodes, inputs, outputs, initializers=()):
    graph = H.make_graph(nodes, name, inputs, outputs, list(initializers))
    model = H.make_model(graph, opset_imports=[H.make_opsetid("", 21)], ir_version=10, producer_name="ort_models.py")
    (out / f"{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))


def scalar(name, number, dtype):
    return NH.from_array(np.array(number, dtype), name)


def plain_models(out):
    # y = x @ w + b, w = [[1, 2], [3, 4], [5, 6]], b = [0.5, -0.5]
    weights = [NH.from_array(np.arange(1, 7, dtype=np.float32).reshape(3, 2), "w"),
               NH.from_array(np.array([0.5, -0.5], np.float32), "b")]
    save(out, "matmul_add",
         [H.make_node("MatMul", ["x", "w"], ["product"], name="product"),
          H.make_node("Add", ["product", "b"], ["y"], name="sum")],
         [value("x", T.FLOAT, [2, 3])], [value("y", T.FLOAT, [2, 2]), value("product", T.FLOAT, [2, 2])], weights)
    # A cache: past [2, past_length] and new [2, n] to all [2, past_length + n], int32
    save(out, "concat_dynamic",
         [H.make_node("Concat", ["past", "new"], ["all"], name="concat", axis=1)],
         [value("past", T.INT32, [2, "past_length"]), value("new", T.INT32, [2, "n"])],
         [value("all", T.INT32, [2, "total"])])
    # A text output: a type that hexport does not pass on
    save(out, "string_output", [H.make_node("Cast", ["x"], ["y"], name="cast", to=T.STRING)],
         [value("x", T.FLOAT, [1])], [value("y", T.STRING, [1])])


def qdq_nodes(extra):
    """u16 activations, int8 weights per channel: x @ w, then `extra` nodes on the dequantized product."""
    rng = np.random.default_rng(7)
    w = rng.integers(-127, 128, (32, 16)).astype(np.int8)
    w_scale = (0.01 + rng.random(16) * 0.01).astype(np.float32)
    initializers = [NH.from_array(w, "w_q"), NH.from_array(w_scale, "w_s"), NH.from_array(np.zeros(16, np.int8), "w_z"),
                    scalar("x_s", 1 / 16384, np.float32), scalar("x_z", 32768, np.uint16),
                    scalar("y_s", 1 / 512, np.float32), scalar("y_z", 30000, np.uint16)]
    nodes = [H.make_node("DequantizeLinear", ["x", "x_s", "x_z"], ["x_f"], name="x_DQ"),
             H.make_node("DequantizeLinear", ["w_q", "w_s", "w_z"], ["w_f"], name="w_DQ", axis=1),
             H.make_node("MatMul", ["x_f", "w_f"], ["y_f"], name="product"),
             H.make_node("QuantizeLinear", ["y_f", "y_s", "y_z"], ["y"], name="y_Q")]
    return nodes + extra, initializers, w, w_scale


def qdq_models(out):
    nodes, initializers, w, w_scale = qdq_nodes([])
    save(out, "qdq_matmul", nodes, [value("x", T.UINT16, [1, 4, 32])], [value("y", T.UINT16, [1, 4, 16])], initializers)
    x = np.random.default_rng(8).integers(0, 65536, (1, 4, 32)).astype(np.uint16)
    # The product is exact in float64; codes round half to even as QuantizeLinear does.
    real = ((x.astype(np.float64) - 32768) / 16384) @ (w.astype(np.float64) * w_scale.astype(np.float64))
    y = np.clip(np.rint(real * 512) + 30000, 0, 65535).astype(np.uint16)
    (out / "qdq_matmul_x.bin").write_bytes(x.tobytes())
    (out / "qdq_matmul_y.bin").write_bytes(y.tobytes())

    # Q-DQ twice with different scales rounds twice; dropping the inner pair gives other codes.
    pair = lambda source, s, z, name: [
        H.make_node("QuantizeLinear", [source, s, z], [name + "_q"], name=name + "_Q"),
        H.make_node("DequantizeLinear", [name + "_q", s, z], [name], name=name + "_DQ")]
    save(out, "double_rounding",
         pair("x", "coarse_s", "coarse_z", "coarse") + pair("coarse", "fine_s", "fine_z", "y"),
         [value("x", T.FLOAT, [8])], [value("y", T.FLOAT, [8])],
         [scalar("coarse_s", 0.5, np.float32), scalar("coarse_z", 128, np.uint8),
          scalar("fine_s", 0.375, np.float32), scalar("fine_z", 100, np.uint8)])

    # NonZero has a data-dependent shape, which the NPU cannot take.
    extra = [H.make_node("DequantizeLinear", ["y", "y_s", "y_z"], ["y_back"], name="y_DQ"),
             H.make_node("NonZero", ["y_back"], ["places"], name="find_places")]
    nodes, initializers, _, _ = qdq_nodes(extra)
    save(out, "qdq_unsupported", nodes, [value("x", T.UINT16, [1, 4, 32])],
         [value("y", T.UINT16, [1, 4, 16]), value("places", T.INT64, [3, "count"])], initializers)


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    plain_models(out)
    qdq_models(out)


if __name__ == "__main__":
    main()
