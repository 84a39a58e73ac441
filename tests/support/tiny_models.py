"""A causal language model of a few thousand random weights, texts of any length, and a Trainer around them."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

VOCABULARY = 96


def model(seed=0, *, lora=False, width=32, **options):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        **options,
    )
    made = LlamaForCausalLM(config)
    if not lora:
        return made
    from peft import LoraConfig, get_peft_model

    return get_peft_model(made, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))


def texts(count, shortest=4, longest=24, seed=1):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (count,), generator=generator).tolist()
    return [{"input_ids": torch.randint(3, VOCABULARY, (n,), generator=generator).tolist()} for n in lengths]


def collate(samples):
    longest = max(len(sample["input_ids"]) for sample in samples)
    ids = torch.tensor([s["input_ids"] + [0] * (longest - len(s["input_ids"])) for s in samples])
    lengths = torch.tensor([len(s["input_ids"]) for s in samples])
    mask = (torch.arange(longest) < lengths[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def trainer(folder, made, data, *, kind=Trainer, collator=collate, others=None, **options):
    options = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "num_train_epochs": 1,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **options,
    }
    arguments = TrainingArguments(output_dir=str(folder), **options)
    return kind(made, arguments, train_dataset=data, data_collator=collator, **(others or {}))
