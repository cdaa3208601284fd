"""GGUF out and in.

    export.py CHECKPOINT TOKENIZER.json OUT.gguf f32|f16|q8_0
"""
import re
import sys

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

from model import Config, Model
from tokenizer import SPECIAL, Tokenizer

# Small, or used as they are by every engine: never quantised.
F32 = re.compile(r"(_norm\.weight|ssm_conv1d|ssm_a$|ssm_dt\.bias|exp_probs_b\.bias|ffn_gate_inp\.weight|res_score\.weight)")


def tensors(model):
    """(name in the file, array) of a model; array shapes are the reverse of ggml's."""
    c = model.c
    for name, p in list(model.named_parameters()) + list(model.named_buffers()):
        a = p.detach().float().cpu().numpy()
        part = name.rsplit(".", 1)[-1]
        prefix = name[: -len(part)]
        if part == "load":
            continue
        if part == "ssm_conv1d":
            for x, y in zip("qkv", np.split(a, 3)):
                yield f"{prefix}ssm_conv1d_{x}.weight", y.reshape(1, -1, 1, c.conv)
        elif part == "a_log":
            yield prefix + "ssm_a", -np.exp(a)
        elif part == "ssm_dt" or part == "exp_probs_b":
            yield f"{prefix}{part}.bias", a
        elif part == "attn_k_b":
            yield name + ".weight", a.reshape(c.heads, c.nope, c.kv_rank).transpose(0, 2, 1)
        elif part == "attn_v_b":
            yield name + ".weight", a.reshape(c.heads, c.value, c.kv_rank)
        else:
            yield name + ".weight", a
            if name == "token_embd":
                yield "output.weight", a


def load_gguf(model, path):
    """Takes the weights of a file that `write` made."""
    c, file = model.c, {t.name: t for t in gguf.GGUFReader(path).tensors}
    get = lambda n: torch.tensor(gguf.quants.dequantize(np.asarray(file[n].data), file[n].tensor_type).astype(np.float32).reshape(
        [int(x) for x in reversed(file[n].shape)]))
    own = dict(list(model.named_parameters()) + list(model.named_buffers()))
    with torch.no_grad():
        for name, p in own.items():
            part = name.rsplit(".", 1)[-1]
            prefix = name[: -len(part)]
            if part == "load":
                continue
            if part == "ssm_conv1d":
                v = torch.cat([get(f"{prefix}ssm_conv1d_{x}.weight").reshape(-1, c.conv) for x in "qkv"])
            elif part == "a_log":
                v = (-get(prefix + "ssm_a")).log()
            elif part in ("ssm_dt", "exp_probs_b"):
                v = get(f"{prefix}{part}.bias")
            elif part == "attn_k_b":
                v = get(name + ".weight").transpose(1, 2)
            else:
                v = get(name + ".weight")
            p.copy_(v.reshape(p.shape))


def write(model, tok, path, kind):
    """Writes the model with its tokenizer."""
    c, w = model.c, gguf.GGUFWriter(path, "kimi-k3")
    a = "kimi-k3."
    w.add_name("Kadence mini")
    w.add_description("A small model of the Kimi K3 architecture that remembers what it is told; made for Kadence")
    w.add_license("MIT")
    w.add_quantization_version(2)
    w.add_file_type({"f32": 0, "f16": 1, "q8_0": 7}[kind])
    for key, value in (("block_count", c.layers), ("context_length", 4096), ("embedding_length", c.width), ("feed_forward_length", c.dense),
                       ("attention.head_count", c.heads), ("attention.q_lora_rank", c.q_rank), ("attention.kv_lora_rank", c.kv_rank),
                       ("rope.dimension_count", c.shared_key), ("attention.key_length", c.kv_rank + c.shared_key), ("attention.value_length", c.kv_rank),
                       ("attention.key_length_mla", c.nope + c.shared_key), ("attention.value_length_mla", c.value), ("ssm.conv_kernel", c.conv),
                       ("kda.head_dim", c.kda_dim), ("expert_count", c.experts), ("expert_used_count", c.used), ("expert_shared_count", 1),
                       ("expert_feed_forward_length", c.expert_width), ("expert_latent_length", c.latent), ("leading_dense_block_count", 1),
                       ("expert_gating_func", 2), ("attn_res.block_size", c.block), ("vocab_size", c.vocab)):
        w.add_uint32(a + key, value)
    w.add_array(a + "attention.head_count_kv", [int(i in c.mla) for i in range(c.layers)])
    for key, value in (("attention.layer_norm_rms_epsilon", c.eps), ("rope.freq_base", 10000.0), ("expert_weights_scale", 1.0),
                       ("kda.gate_lower_bound", c.lower_bound), ("activation.situ_beta", c.beta), ("activation.situ_linear_beta", c.beta_linear)):
        w.add_float32(a + key, value)
    w.add_bool(a + "expert_weights_norm", True)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("kimi-k2")
    w.add_token_list(tok.tokens)
    w.add_token_types([1] * len(tok.ordinary) + [3] * len(SPECIAL))
    w.add_token_merges([f"{x} {y}" for x, y in tok.merges])
    w.add_bos_token_id(tok.id["[BOS]"])
    w.add_eos_token_id(tok.end)
    w.add_pad_token_id(tok.pad)
    w.add_unk_token_id(tok.id["[UNK]"])
    for name, x in tensors(model):
        x = np.ascontiguousarray(x)
        if kind == "f32" or F32.search(name):
            w.add_tensor(name, x)
        elif kind == "f16":
            w.add_tensor(name, x.astype(np.float16))
        else:
            w.add_tensor(name, gguf.quants.quantize(x, Type.Q8_0), raw_dtype=Type.Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def load_checkpoint(path):
    model = Model(Config())
    model.load_state_dict(torch.load(path, map_location="cpu")["model"])
    return model.eval()


if __name__ == "__main__":
    write(load_checkpoint(sys.argv[1]), Tokenizer(sys.argv[2]), sys.argv[3], sys.argv[4])
