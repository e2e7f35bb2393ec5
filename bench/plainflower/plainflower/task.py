"""The model: a transformer of 19.0 M parameters, 76 MB in fp32, as the engine of `bench/overhead` is."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width, heads, inner, layers, pieces = 384, 6, 1536, 4, 6400
        self.shared = nn.Embedding(pieces, width)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, heads, inner, batch_first=True), layers, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(width, heads, inner, batch_first=True), layers)


def train(net: nn.Module, by: float) -> float:
    """No training. But weights that came back as they went would be known to the server already, and not be sent."""
    with torch.no_grad():
        for tensor in net.parameters():
            tensor.mul_(1 + by)
    return 0.0
