"""The language model of Qwen3-TTS in plain torch: the oracle of every kernel that follows."""
