#!/usr/bin/env python3
"""Makes the folders hf/*: small random models in the form in which `transformers` saves them, a
batch, and what PyTorch makes of it (pip install torch transformers safetensors).

    config.json, model.safetensors   the model, as save_pretrained writes it
    batch.safetensors                inputs, packed; logits, loss and the last block's output
    gradients.safetensors            of the mean loss by every parameter, under its name
    after.safetensors                of a ResNet: the model after two forwards in training mode

Everything is computed in float64, without dropout, on sequences that are padded to the longest and
masked, and then stored as float32. (Attention is "sdpa": that of "eager" rounds to float32.)
"""

import copy
import pathlib
import shutil
import tempfile

import safetensors.torch
import torch
import transformers

LENGTHS = [7, 3, 12, 1, 9]
VOCABULARY, MASK = 60, 1  # 0 is padding, for which transformers computes no gradient
FOLDER = pathlib.Path(__file__).parent / "hf"


def bert_config(**sizes):
    return transformers.BertConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
        **sizes,
    )


def randomize(model, generator):
    """Norms and biases of a fresh model are ones and zeros, which would hide a lot."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            norm = name.lower().endswith(("norm.weight", "norm_before.weight", "norm_after.weight",
                                          "norm1.weight", "norm2.weight", "normalization.weight",
                                          "ln_1.weight", "ln_2.weight", "ln_f.weight"))
            parameter.copy_(1 + 0.3 * noise if norm else 0.2 * noise)


def padded(generator):
    """Token ids, kinds of text and mask, [N, longest]; the second text begins in the middle."""
    longest = max(LENGTHS)
    tokens = torch.randint(2, VOCABULARY, (len(LENGTHS), longest), generator=generator)
    mask = torch.tensor([[int(t < n) for t in range(longest)] for n in LENGTHS])
    types = torch.tensor([[int(n // 2 <= t < n and n > 3) for t in range(longest)] for n in LENGTHS])
    return {"input_ids": tokens * mask, "token_type_ids": types, "attention_mask": mask}


def packed(values, mask):
    return values[mask.bool()]


def store(name, model, tensors, output, hidden):
    folder = FOLDER / name
    model.float().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tensors = dict(tensors, logits=output.logits, loss=output.loss.reshape(1), hidden=hidden)
    tensors = {
        key: (value.float() if value.is_floating_point() else value).detach().contiguous()
        for key, value in tensors.items()
    }
    safetensors.torch.save_file(tensors, folder / "batch.safetensors", {"format": "pt"})
    # Saved as if they were the weights, for the names in files are not those in memory.
    for key, parameter in model.named_parameters():
        if key == "cls.predictions.bias" and not model.config.tie_word_embeddings:
            continue  # saved, and read by no one: the untied decoder has its own
        assert parameter.grad is not None, key
        parameter.data = parameter.grad.float()
    save_weights(model, folder / "gradients.safetensors")
    print(name, output.loss.item())


def run_bert(name, model, labels, seed, extra=None):
    generator = torch.Generator().manual_seed(seed)
    randomize(model, generator)
    model.double().eval()
    inputs = padded(generator)
    mask = inputs["attention_mask"]
    if extra:
        labels, tensors = extra(inputs, generator)
    else:
        tensors = {"labels": labels.int()} if not labels.is_floating_point() else {"targets": labels}
    output = model(**inputs, labels=labels, output_hidden_states=True)
    output.loss.backward()
    if "masked_rows" in tensors:
        output.logits = packed(output.logits, mask)[tensors["masked_rows"].long()]
    tensors = dict(
        tensors,
        tokens=packed(inputs["input_ids"], mask).int(),
        token_types=packed(inputs["token_type_ids"], mask).int(),
        offsets=torch.tensor([0] + LENGTHS).cumsum(0),
    )
    store(name, model, tensors, output, packed(output.hidden_states[-1], mask))


def masked_words(inputs, generator):
    """Chooses positions, puts the mask token there; -100 elsewhere, as transformers expects."""
    mask = inputs["attention_mask"].bool()
    chosen = (torch.rand(mask.shape, generator=generator) < 0.5) & mask
    chosen[1] = False  # one item without any
    labels = torch.where(chosen, inputs["input_ids"], -100)
    inputs["input_ids"] = torch.where(chosen, MASK, inputs["input_ids"])
    rows = packed(chosen, mask).nonzero().flatten()
    return labels, {
        "masked_rows": rows.int(),
        "masked_labels": labels[chosen].int(),
        "masked_offsets": torch.cat([torch.zeros(1, dtype=torch.long), chosen.sum(1).cumsum(0)]),
    }


def run_gpt(name, seed, bare, **sizes):
    """Every row predicts some token. `bare`: saved without a head."""
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa", **sizes))
    generator = torch.Generator().manual_seed(seed)
    randomize(model, generator)
    model.double().eval()
    inputs = padded(generator)
    del inputs["token_type_ids"]
    mask = inputs["attention_mask"]
    blocks = []  # the last of hidden_states is normalized
    model.transformer.h[-1].register_forward_hook(lambda block, args, out: blocks.append(out))
    output = model(**inputs)
    output.logits = packed(output.logits, mask)
    labels = torch.randint(0, VOCABULARY, (sum(LENGTHS),), generator=generator)
    # That of the model is computed in float32.
    output.loss = torch.nn.functional.cross_entropy(output.logits, labels)
    output.loss.backward()
    offsets = torch.tensor([0] + LENGTHS).cumsum(0)
    store(name, model.transformer if bare else model, {
        "tokens": packed(inputs["input_ids"], mask).int(),
        "offsets": offsets,
        "masked_rows": torch.arange(sum(LENGTHS)).int(),
        "masked_labels": labels.int(),
        "masked_offsets": offsets.clone(),
    }, output, packed(blocks[0], mask))


def run_images(name, model, seed):
    generator = torch.Generator().manual_seed(seed)
    randomize(model, generator)
    model.double().eval()
    images = torch.randn(4, 3, 8, 8, generator=generator)
    labels = torch.tensor([2, 0, 1, 2])
    output = model(images.double(), labels=labels, output_hidden_states=True)
    output.loss.backward()
    store(name, model, {"values": images, "labels": labels.int()}, output,
          output.hidden_states[-1])


def save_weights(model, file):
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        shutil.copyfile(f"{scratch}/model.safetensors", file)


def run_resnet(name, seed, **sizes):
    """In training mode: norms are of the batch, and each forward moves the running statistics."""
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(
        num_labels=3, image_size=20, **sizes))
    generator = torch.Generator().manual_seed(seed)
    randomize(model, generator)
    with torch.no_grad():
        for key, buffer in model.named_buffers():
            if key.endswith("running_mean"):
                buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
            if key.endswith("running_var"):
                buffer.copy_(1 + torch.rand(buffer.shape, generator=generator))
    model.double().train()
    before = copy.deepcopy(model)
    images = torch.randn(4, 3, 20, 20, generator=generator)
    labels = torch.tensor([2, 0, 1, 2])
    output = model(images.double(), labels=labels, output_hidden_states=True)
    output.loss.backward()
    for stored, trained in zip(before.parameters(), model.parameters()):
        stored.grad = trained.grad
    with torch.no_grad():
        model(images.double() ** 2)
        evaluated = model.eval()(images.double()).logits
    store(name, before, {"values": images, "labels": labels.int(), "evaluated": evaluated}, output,
          output.hidden_states[-1])
    save_weights(model.float(), FOLDER / name / "after.safetensors")


def main():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 40}
    run_bert(
        "bert_classification",
        transformers.BertForSequenceClassification(bert_config(
            num_labels=3, id2label={0: "entailment", 1: "neutral", 2: "contradiction"},
            label2id={"entailment": 0, "neutral": 1, "contradiction": 2},
            **dict(sizes, hidden_size=24, num_hidden_layers=3, intermediate_size=52))),
        torch.tensor([0, 2, 1, 1, 0]), seed=1)
    run_bert(
        "bert_regression",
        transformers.BertForSequenceClassification(
            bert_config(num_labels=1, problem_type="regression", **sizes)),
        torch.tensor([0.5, -1.25, 3.0, 2.0, 0.0], dtype=torch.float64), seed=2)
    run_bert("bert_mlm", transformers.BertForMaskedLM(bert_config(**sizes)), None, seed=3,
             extra=masked_words)
    run_bert("bert_mlm_untied",
             transformers.BertForMaskedLM(bert_config(tie_word_embeddings=False, **sizes)), None,
             seed=5, extra=masked_words)
    images = dict(sizes, image_size=8, patch_size=4, num_channels=3, hidden_act="gelu")
    run_images("vit", transformers.ViTForImageClassification(transformers.ViTConfig(
        num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa", **images)), seed=4)
    # A ViT whose classifier reads the mean of the patches.
    run_images("vit_mean", transformers.SiglipForImageClassification(transformers.SiglipConfig(
        num_labels=3, attn_implementation="sdpa",
        vision_config=dict(images, vision_use_head=False))), seed=6)
    run_resnet("resnet_basic", 7, depths=[2, 1], hidden_sizes=[8, 12], embedding_size=6,
               layer_type="basic")
    run_resnet("resnet_bottleneck", 8, depths=[1, 2], hidden_sizes=[16, 24], embedding_size=8,
               layer_type="bottleneck")
    run_gpt("gpt2", 9, False, n_inner=40)
    run_gpt("gpt2_bare", 10, True, activation_function="gelu", layer_norm_epsilon=1e-3)


main()
