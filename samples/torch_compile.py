"""PyTorch through libraries of atc, in ten lines: `python samples/torch_compile.py`."""

import torch

model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                            torch.nn.Linear(16 * 30 * 30, 10)).eval()  # fmt: skip
fast = torch.compile(model, backend="atc")
images = torch.randn(4, 3, 32, 32)
with torch.no_grad():
    difference = (fast(images) - model(images)).abs().max().item()
print(f"largest difference from eager: {difference:.1e}")
