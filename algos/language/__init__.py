"""Decoder-only language models as policies, as plain functions over arrays.

Reading order: `adapters` (low-rank changes of the products), `model` (the decoder, its cache and its head),
`families` (the architectures of published models).
"""
