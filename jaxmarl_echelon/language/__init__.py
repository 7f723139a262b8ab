"""Language models on disk: tensors, tokenizers, folders in Hugging Face's layout, conversion of GGUF."""
