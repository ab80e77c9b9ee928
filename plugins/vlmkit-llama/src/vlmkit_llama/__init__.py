"""The LLM engine of vlmkit on the library llama.cpp, through its C functions."""
