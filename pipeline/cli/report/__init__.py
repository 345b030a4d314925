"""`kquota report`: what was used and by whom, how long clients were throttled, and which bounds fit."""
