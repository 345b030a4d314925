"""Other stream processors beside ours, on the same messages and the same machine."""
