"""torch_geometric: message passing over graphs of different sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

NEEDS = ("torch_geometric",)


def run(folder: Path, steps: int) -> Any:
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_mean_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                [
                    GCNConv(32, 64),
                    SAGEConv(64, 64),
                    GATConv(64, 32, heads=2),
                    GCNConv(64, 64),
                    SAGEConv(64, 64),
                ]
            )
            self.head = nn.Linear(64, 4)

        def forward(self, data: Any) -> torch.Tensor:
            x = data.x
            for layer in self.layers:
                x = F.dropout(layer(x, data.edge_index).relu(), 0.1, self.training)
            return self.head(global_mean_pool(x, data.batch))

    torch.manual_seed(0)
    graphs = []
    for _ in range(16 * steps):
        nodes = int(torch.randint(20, 40, ()))
        graphs.append(
            Data(
                x=torch.randn(nodes, 32),
                edge_index=torch.randint(0, nodes, (2, 3 * nodes)),
                y=torch.randint(0, 4, (1,)),
            )
        )
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for data in DataLoader(graphs, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), data.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()
