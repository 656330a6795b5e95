"""OpenVINO's ScaledDotProductAttention on the CPU, on [batch][head][token][dim] tensors."""

import numpy as np

import peer


def hello(threads):
    global openvino, ops
    import openvino
    from openvino import opset13 as ops

    return f"OpenVINO {openvino.__version__.split('-')[0]}"


def open_shape(shape):
    if shape.hq != shape.hk:
        raise peer.No("its operation takes as many heads of K as of Q")
    ov_type = {"f32": openvino.Type.f32, "f16": openvino.Type.f16, "bf16": openvino.Type.bf16}[shape.dtype]
    tensors, parameters = {}, []
    for name in "qkv":
        x = shape.read(name).transpose(0, 2, 1, 3)
        tensors[name] = openvino.Tensor(ov_type, list(x.shape))
        tensors[name].data.view(x.dtype)[...] = x  # bf16 has no numpy type: its bits are uint16
        parameters.append(ops.parameter(list(x.shape), ov_type, name))
    node = ops.scaled_dot_product_attention(*parameters, causal=shape.causal)
    model = openvino.Model([ops.result(node)], parameters, "attention")
    config = {
        "INFERENCE_NUM_THREADS": shape.threads,
        "NUM_STREAMS": "1",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": ov_type,
    }
    request = openvino.Core().compile_model(model, "CPU", config).create_infer_request()
    for index, name in enumerate("qkv"):
        request.set_input_tensor(index, tensors[name])

    def run():
        request.infer()

    def output():
        o = request.get_output_tensor(0)
        data = o.data
        if o.element_type == openvino.Type.bf16:
            data = peer.widen(data.view(np.uint16))
        return data.astype(np.float32).transpose(0, 2, 1, 3)

    facts = [op.get_rt_info() for op in request.get_compiled_model().get_runtime_model().get_ops()]
    kernels = {f"{f['layerType'].value} {f['primitiveType'].value}" for f in facts if "primitiveType" in f}
    kernels = sorted(name for name in kernels if name.startswith(("Subgraph", "Scaled", "MatMul")))
    return f"SDPA as {', '.join(kernels)}", run, output


peer.serve(hello, open_shape)
