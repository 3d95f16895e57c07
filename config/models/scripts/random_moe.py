#!/usr/bin/env python3
"""Writes a folder in Hugging Face layout with random bfloat16 weights at the true width of
Qwen3-30B-A3B and a few of its 48 layers, in shards with an index. Standard library only.

    python3 random_moe.py OUT_DIR [LAYERS]      about 1.2 GB for the embedding and head, 1.2 GB per layer
"""
import array, json, os, random, struct, sys

SHARD_BYTES = 1 << 30
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu", "torch_dtype": "bfloat16",
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 4,
    "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_scaling": None,
    "max_position_embeddings": 4096, "attention_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": False,
    "sliding_window": None, "use_sliding_window": False, "bos_token_id": 151643, "eos_token_id": 151645,
}

def tensors(layers):
    """(name, shape, scale); scale 0: all ones."""
    hidden, vocabulary, inner = CONFIG["hidden_size"], CONFIG["vocab_size"], CONFIG["moe_intermediate_size"]
    q, kv, dim = CONFIG["num_attention_heads"] * CONFIG["head_dim"], CONFIG["num_key_value_heads"] * CONFIG["head_dim"], CONFIG["head_dim"]
    yield "model.embed_tokens.weight", [vocabulary, hidden], 1.0
    for layer in range(layers):
        p = f"model.layers.{layer}."
        yield p + "input_layernorm.weight", [hidden], 0
        yield p + "post_attention_layernorm.weight", [hidden], 0
        for name, shape in (("q_proj", [q, hidden]), ("k_proj", [kv, hidden]), ("v_proj", [kv, hidden]), ("o_proj", [hidden, q])):
            yield p + f"self_attn.{name}.weight", shape, shape[1] ** -0.5
        yield p + "self_attn.q_norm.weight", [dim], 0
        yield p + "self_attn.k_norm.weight", [dim], 0
        yield p + "mlp.gate.weight", [CONFIG["num_experts"], hidden], hidden ** -0.5
        for expert in range(CONFIG["num_experts"]):
            e = p + f"mlp.experts.{expert}."
            yield e + "gate_proj.weight", [inner, hidden], hidden ** -0.5
            yield e + "up_proj.weight", [inner, hidden], hidden ** -0.5
            yield e + "down_proj.weight", [hidden, inner], inner ** -0.5
    yield "model.norm.weight", [hidden], 0
    yield "lm_head.weight", [vocabulary, hidden], hidden ** -0.5

def bfloat16(x):
    return struct.unpack("<I", struct.pack("<f", x))[0] >> 16

def noise(scaled, count, chance):
    """`count` bfloat16: pieces of one pool of random values, from random places."""
    left = count
    while left > 0:
        at = chance.randrange(len(scaled))
        piece = scaled[at:at + left]
        yield piece.tobytes()
        left -= len(piece)

def main(folder, layers):
    os.makedirs(folder, exist_ok=True)
    chance = random.Random(1)
    pool = [chance.uniform(-1.0, 1.0) for _ in range(1048573)]
    scales = {scale for _, _, scale in tensors(layers) if scale}
    scaled = {scale: array.array("H", (bfloat16(v * scale) for v in pool)) for scale in scales}
    shards, size = [[]], 0
    for name, shape, scale in tensors(layers):
        count = 1
        for n in shape: count *= n
        if size + 2 * count > SHARD_BYTES and shards[-1]: shards.append([]); size = 0
        shards[-1].append((name, shape, scale, count))
        size += 2 * count
    where, total = {}, 0
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        header, at = {}, 0
        for name, shape, _, count in shard:
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * count]}
            where[name] = file
            at += 2 * count
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder, file), "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for _, _, scale, count in shard:
                if scale == 0: out.write(array.array("H", [0x3F80]).tobytes() * count)
                else: out.writelines(noise(scaled[scale], count, chance))
        total += at
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as out:
        json.dump({"metadata": {"total_size": total}, "weight_map": where}, out)
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump({**CONFIG, "num_hidden_layers": layers}, out, indent=1)
    print(f"{folder}: {layers} layers, {len(shards)} shards, {total / 1e9:.2f} GB")

main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)
