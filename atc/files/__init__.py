"""Files that end and folders that go: what reading and writing safely needs of the system.

`regular` refuses pipes and devices, `temporary` sweeps what killed processes left. Imports nothing
of ours.
"""
