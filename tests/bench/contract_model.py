"""Writes a policy with random weights, large enough for a decode step of milliseconds, prompts for it and
their history.

    contract_model.py FOLDER

Its tokens are about equally likely, so responses end by chance after about as many tokens as there are words.
"""
import json
import os
import random
import struct
import sys

VOCABULARY, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, INNER = 64, 256, 4, 8, 4, 32, 32, 128
END = 1


def weights():
    """-> [(name, shape, whether it is the gain of a norm)]"""
    yield "model.embed_tokens.weight", [VOCABULARY, HIDDEN], False
    yield "model.norm.weight", [HIDDEN], True
    yield "lm_head.weight", [VOCABULARY, HIDDEN], False
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", [HIDDEN], True
        yield at + "post_attention_layernorm.weight", [HIDDEN], True
        yield at + "self_attn.q_norm.weight", [HEAD_DIM], True
        yield at + "self_attn.k_norm.weight", [HEAD_DIM], True
        yield at + "self_attn.q_proj.weight", [HEADS * HEAD_DIM, HIDDEN], False
        yield at + "self_attn.k_proj.weight", [KV_HEADS * HEAD_DIM, HIDDEN], False
        yield at + "self_attn.v_proj.weight", [KV_HEADS * HEAD_DIM, HIDDEN], False
        yield at + "self_attn.o_proj.weight", [HIDDEN, HEADS * HEAD_DIM], False
        yield at + "mlp.gate.weight", [EXPERTS, HIDDEN], False
        for expert in range(EXPERTS):
            of = f"{at}mlp.experts.{expert}."
            yield of + "gate_proj.weight", [INNER, HIDDEN], False
            yield of + "up_proj.weight", [INNER, HIDDEN], False
            yield of + "down_proj.weight", [HIDDEN, INNER], False


def values(count, gain, chance):
    """bfloat16: ones, or magnitudes of 2^-7 to 2^-5 of either sign."""
    if gain:
        return b"\x80\x3f" * count
    raw = bytearray(chance.randbytes(2 * count))
    raw[1::2] = raw[1::2].translate(bytes(0x3C | (b & 0x80) for b in range(256)))
    return bytes(raw)


def main(folder):
    chance = random.Random(1)
    os.makedirs(folder + "/model")
    header, place, blobs = {}, 0, []
    for name, shape, gain in weights():
        count = 1
        for extent in shape:
            count *= extent
        blobs.append(values(count, gain, chance))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [place, place + 2 * count]}
        place += 2 * count
    text = json.dumps(header).encode()
    with open(folder + "/model/model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    json.dump({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "hidden_act": "silu",
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "attention_bias": False,
        "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": END, "torch_dtype": "bfloat16",
        "num_experts": EXPERTS, "num_experts_per_tok": 4, "moe_intermediate_size": INNER, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [],
    }, open(folder + "/model/config.json", "w"))
    json.dump({"bos_token_id": 0, "eos_token_id": END, "do_sample": True, "temperature": 1.0, "max_new_tokens": 512},
              open(folder + "/model/generation_config.json", "w"))
    with open(folder + "/prompts.jsonl", "w") as out:
        for number in range(64):
            tokens = [0] + [chance.randrange(2, VOCABULARY) for _ in range(15)]
            out.write(json.dumps({"prompt_id": str(number), "prompt_token_ids": tokens}) + "\n")
    with open(folder + "/history.csv", "w") as out:
        out.write("prompt_id,sample,epoch,response_tokens,reward\n")
        for number in range(64):
            for sample in range(8):
                out.write(f"{number},{sample},1,{min(1 + int(chance.expovariate(0.01)), 512)},0\n")


main(sys.argv[1])
