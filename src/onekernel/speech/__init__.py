"""Qwen3-TTS: text to speech, frame by frame. Config, weights, prompt, reference engine, codec."""
