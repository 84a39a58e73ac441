"""Fine-tune a small language model with LoRA under a power cap.

python finetune_lora.py --device sim:jetson-orin-nano --cap 9W --steps 20
"""

import argparse
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from wattune.integrations.transformers import attach

LENGTH = 128
"""Tokens in a row."""


def language_model(name: str | None, layers: int) -> torch.nn.Module:
    """A pretrained model, or one of SmolLM-135M's size with random weights."""
    if name is not None:
        return AutoModelForCausalLM.from_pretrained(name)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def rows(text: str, name: str | None) -> list[dict[str, list[int]]]:
    """The text as rows of tokens; its bytes if there is no tokenizer."""
    tokens = list(text.encode()) if name is None else AutoTokenizer.from_pretrained(name)(text)["input_ids"]
    starts = range(0, len(tokens) - LENGTH + 1, LENGTH // 8)
    return [{"input_ids": (row := tokens[start : start + LENGTH]), "labels": row} for start in starts]


def main() -> None:
    """Train for some steps, and print what was chosen."""
    parser = argparse.ArgumentParser(description="LoRA on a small language model under a power cap")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cap", default="9W")
    parser.add_argument("--model", help="name of a pretrained model (default: random weights)")
    parser.add_argument("--text", type=Path, default=Path(__file__).with_name("README.md"))
    parser.add_argument("--layers", type=int, default=30, help="layers of the model with random weights")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    adapters = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["q_proj", "v_proj"])
    model = get_peft_model(language_model(arguments.model, arguments.layers), adapters)
    model.print_trainable_parameters()
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir="adapters",
            per_device_train_batch_size=8,
            max_steps=arguments.steps,
            learning_rate=2e-4,
            lr_scheduler_type="cosine",
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=rows(arguments.text.read_text(encoding="utf-8"), arguments.model),
    )
    with attach(trainer, device=arguments.device, cap_w=arguments.cap, record="session.json") as capped:
        trainer.train()
    model.save_pretrained("adapters")
    rows_per_s = capped.record.samples / capped.record.time_s
    print(f"{rows_per_s * LENGTH:.0f} tokens/s, {capped.record.power_peak_w:.2f} W at most")


if __name__ == "__main__":
    main()
