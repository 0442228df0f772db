"""The self-test that anyone can run: the installed versions, through the real release path."""
