"""ONNX Runtime's CPU attention: `ort.py mha`, `attention` or `gqa` names the operator."""

import sys

import numpy as np

import peer

OPERATOR = sys.argv[1]


def hello(threads):
    global ort, onnx, TensorProto, helper
    import onnx
    import onnxruntime as ort
    from onnx import TensorProto, helper

    return f"ONNX Runtime {ort.__version__}"


def node_of(shape):
    """The operator, and its inputs beyond q, k and v."""
    if OPERATOR == "mha":
        if shape.hq != shape.hk:
            raise peer.No("MultiHeadAttention takes as many heads of K as of Q")
        return helper.make_node(
            "MultiHeadAttention", ["q", "k", "v"], ["o"], domain="com.microsoft", num_heads=shape.hq,
            unidirectional=int(shape.causal)
        ), {}
    if OPERATOR == "attention":
        return helper.make_node(
            "Attention", ["q", "k", "v"], ["o"], q_num_heads=shape.hq, kv_num_heads=shape.hk,
            is_causal=int(shape.causal)
        ), {}
    if not shape.causal or shape.q != shape.k:
        raise peer.No("GroupQueryAttention is causal, and takes new keys only as many as queries")
    node = helper.make_node(
        "GroupQueryAttention", ["q", "k", "v", "", "", "lengths", "total"], ["o", "present_k", "present_v"],
        domain="com.microsoft", num_heads=shape.hq, kv_num_heads=shape.hk
    )
    return node, {"lengths": np.full([shape.b], shape.k - 1, np.int32), "total": np.array(shape.k, np.int32)}


def open_shape(shape):
    if shape.dtype == "bf16":
        raise peer.No("its CPU attention has no bf16")
    numpy_type = {"f32": np.float32, "f16": np.float16}[shape.dtype]
    onnx_type = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16}[shape.dtype]
    node, more = node_of(shape)
    feeds = {name: shape.read(name).reshape(shape.b, -1, (shape.hq if name == "q" else shape.hk) *
                                            (shape.dv if name == "v" else shape.d)) for name in "qkv"}
    inputs = [helper.make_tensor_value_info(name, onnx_type, x.shape) for name, x in feeds.items()]
    inputs += [helper.make_tensor_value_info(name, TensorProto.INT32, x.shape) for name, x in more.items()]
    outputs = [helper.make_tensor_value_info("o", onnx_type, [shape.b, shape.q, shape.hq * shape.dv])]
    if OPERATOR == "gqa":
        outputs += [helper.make_tensor_value_info("present_k", onnx_type, [shape.b, shape.hk, shape.k, shape.d]),
                    helper.make_tensor_value_info("present_v", onnx_type, [shape.b, shape.hk, shape.k, shape.dv])]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)

    options = ort.SessionOptions()
    options.intra_op_num_threads = shape.threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.force_spinning_stop", "1")  # its threads spin only while it runs
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, x in (feeds | more).items():
        binding.bind_cpu_input(name, np.ascontiguousarray(x))
    result = np.zeros([shape.b, shape.q, shape.hq * shape.dv], numpy_type)
    binding.bind_output("o", "cpu", 0, numpy_type, result.shape, result.ctypes.data)
    if OPERATOR == "gqa":
        binding.bind_output("present_k", "cpu")
        binding.bind_output("present_v", "cpu")

    def run():
        session.run_with_iobinding(binding)

    def output():
        return result.reshape(shape.b, shape.q, shape.hq, shape.dv)

    return f"{node.op_type}, {shape.dtype}", run, output


peer.serve(hello, open_shape)
