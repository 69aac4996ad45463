"""Files that are laid into a sandbox and run there: nothing of ours can be imported by them but each other."""
