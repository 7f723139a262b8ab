"""Decoder-only language models as policies, as plain functions over arrays.

Reading order: `adapters` (low-rank changes of products), `attention` (rotary positions, masks), `model` (the
decoder, its cache and its head), `families` (architectures of published models), `presets` (their sizes).
"""
