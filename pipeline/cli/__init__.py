"""The command line. Modules here import heavy libraries inside their commands, so that `--help` stays quick."""
