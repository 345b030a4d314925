"""Other stream processors compared with ours, on the same messages and the same machine."""
