"""Text decoders of the Llama and Qwen3 families: config, weights, tokenizer, a reference engine, one kernel."""
