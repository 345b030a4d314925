"""Tables fit the terminal. In these tests it is as wide as where no width is known, whatever the shell says."""

import os

os.environ["COLUMNS"] = "80"
