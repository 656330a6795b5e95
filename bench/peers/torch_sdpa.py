"""PyTorch's scaled_dot_product_attention on the CPU, on [batch][head][token][dim] tensors."""

import peer


def hello(threads):
    global torch, sdpa
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return f"PyTorch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"


def open_shape(shape):
    def tensor(name):
        x = torch.from_numpy(shape.read(name))
        if shape.dtype == "bf16":
            x = x.view(torch.bfloat16)
        return x.transpose(1, 2).contiguous()

    q, k, v = tensor("q"), tensor("k"), tensor("v")
    state = {}

    def run():
        state["o"] = sdpa(q, k, v, is_causal=shape.causal, enable_gqa=shape.hq != shape.hk)

    def output():
        return state["o"].transpose(1, 2).float().numpy()

    try:
        backends = {0: "math", 1: "flash", 2: "efficient", 4: "overrideable"}
        choice = torch._fused_sdp_choice(q, k, v, is_causal=shape.causal, enable_gqa=shape.hq != shape.hk)
        kernel = backends.get(choice, str(choice))
    except Exception:
        kernel = "unknown"
    return f"sdpa, {kernel} backend", run, output


peer.serve(hello, open_shape)
