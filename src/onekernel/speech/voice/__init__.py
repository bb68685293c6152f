"""Voices: sound in and out, the speaker encoder, and the voices that are kept on disk."""
