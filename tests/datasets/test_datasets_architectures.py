"""EfficientViT's attention, heads of any width, recurrent networks and networks on graphs: what they compute."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from wattune.algorithms import open_algorithm
from wattune.datasets.graphs import GraphNetwork
from wattune.datasets.mobile_vision import EfficientViT, LinearAttention, efficientvit_b0
from wattune.datasets.recurrent import Gru
from wattune.errors import WorkloadError
from wattune.workloads import Data, Model, Workload
from wattune.workloads.model import structure_hash
from wattune.workloads.models import Attention, Average, CharacterTransformer


class Layer(nn.Module):
    """A module under the former name of ``GruLayer``."""

    def __init__(self, layer):
        super().__init__()
        self.gru, self.dropout = layer.gru, layer.dropout


def random_images():
    draws = torch.Generator().manual_seed(0)
    return Data(
        *((torch.randn(n, 3, 32, 32, generator=draws), torch.randint(4, (n,), generator=draws)) for n in (16, 8))
    )


def vision(**changes):
    values = {"model": Model(efficientvit_b0, {"classes": 4}), "data": random_images, "input_shape": (3, 32, 32)}
    return Workload("vision", **{**values, "budget_samples": 64, "batch_sizes": (4, 8), **changes})


class TestEfficientViT:
    @pytest.mark.parametrize("side", [3, 4, 5, 8])
    def test_attention_is_every_pixel_over_every_other(self, side):
        """Both orders of the products against weights written out: relu(q) . relu(k) over their sum."""
        torch.manual_seed(side)
        attention = LinearAttention(32, 16).eval()
        x = torch.randn(2, 32, side, side)
        with torch.no_grad():
            qkv = attention.qkv(x)
            heads = torch.cat([qkv, attention.around(qkv)], 1).view(2, 4, 3, 16, side * side)
            q, k, v = (heads[:, :, at] for at in range(3))
            weights = torch.einsum("bhdi,bhdj->bhij", q.relu(), k.relu())
            mixed = torch.einsum("bhij,bhdj->bhdi", weights / weights.sum(-1, keepdim=True), v)
            wanted = attention.out(mixed.reshape(2, 64, side, side))
            assert torch.allclose(attention(x), wanted, atol=1e-4)

    def test_attention_where_relu_leaves_nothing_is_nothing(self):
        attention = LinearAttention(16, 16).eval()
        with torch.no_grad():
            attention.qkv.weight.zero_()
            assert torch.isfinite(attention(torch.randn(1, 16, 8, 8))).all()

    def test_the_stages_have_the_sizes_that_are_stated(self):
        for stem, pixels, wanted in (("small", 32, [32, 32, 16, 8, 4]), ("imagenet", 224, [112, 56, 28, 14, 7])):
            model = EfficientViT("b0", stem=stem).eval()
            seen = []
            with torch.no_grad():
                x = model.stem(torch.randn(1, 3, pixels, pixels))
                for block in model.stages:
                    seen.append((x.shape[1], x.shape[2]))
                    x = block(x)
            seen.append((x.shape[1], x.shape[2]))
            assert list(dict.fromkeys(seen)) == list(zip((8, 16, 32, 64, 128), wanted, strict=True))

    @pytest.mark.slow
    @pytest.mark.parametrize("data_type", ["fp32", "fp16", "bf16"])
    def test_it_trains_in_every_data_type(self, data_type):
        workload = vision(data_type=data_type)
        algorithm = open_algorithm("backprop", workload, 8)
        losses = [step.loss for _, step in zip(range(4), algorithm.run(workload.batches(8, seed=0)), strict=False)]
        assert all(math.isfinite(loss) for loss in losses)
        assert losses[-1] < losses[0]

    @pytest.mark.slow
    def test_what_is_counted_follows_the_data_type(self):
        model = nn.Sequential(nn.Conv2d(3, 16, 4, stride=4), LinearAttention(16, 16), Average(), nn.Linear(16, 4))
        full, lower = (open_algorithm("backprop", vision(model=model, data_type=t), 8).work() for t in ("fp32", "bf16"))
        assert lower.bytes < full.bytes
        assert lower.flops == pytest.approx(full.flops, rel=0.02)

    @pytest.mark.slow
    def test_it_learns_from_forward_gradients(self):
        workload = vision()
        algorithm = open_algorithm("forward-gradient", workload, 4)
        step = next(iter(algorithm.run(workload.batches(4, seed=0))))
        assert math.isfinite(step.loss)


class TestHeads:
    def test_six_heads_of_a_width_of_their_own(self):
        model = CharacterTransformer(heads=6, head_width=42)
        attention = model.layers[0].attention
        assert (attention.qkv.out_features, attention.out.in_features) == (3 * 252, 252)
        assert model(torch.randint(96, (2, 64))).shape == (2, 64, 96)

    def test_the_width_of_a_head_defaults_to_its_share_of_the_width(self):
        torch.manual_seed(0)
        one = CharacterTransformer(layers=1, heads=4, width=32)
        torch.manual_seed(0)
        other = CharacterTransformer(layers=1, heads=4, width=32, head_width=8)
        x = torch.randint(96, (2, 10))
        assert torch.equal(one(x), other(x))

    @settings(max_examples=20, deadline=None)
    @given(st.integers(1, 5), st.integers(1, 7), st.integers(1, 9))
    def test_attention_is_pytorchs(self, heads, head_width, length):
        torch.manual_seed(0)
        attention = Attention(12, heads, head_width)
        x = torch.randn(2, length, 12)
        q, k, v = attention.qkv(x).view(2, length, 3, heads, head_width).permute(2, 0, 3, 1, 4)
        wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        assert torch.allclose(attention(x), attention.out(wanted), atol=1e-5)


class TestGru:
    def test_it_is_pytorchs_and_a_head_on_the_last_step(self):
        model = Gru(inputs=3, outputs=2, width=8, layers=2).eval()
        reference = nn.GRU(3, 8, num_layers=2, batch_first=True)
        for layer, block in enumerate(model.layers):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(reference, f"{name}_l{layer}").data.copy_(getattr(block.gru, f"{name}_l0"))
        x = torch.randn(4, 9, 3)
        assert torch.allclose(model(x), model.fc(reference(x)[0][:, -1]), atol=1e-6)

    def test_a_series_of_single_values_needs_no_last_dimension(self):
        model = Gru().eval()
        x = torch.randn(4, 9)
        assert torch.equal(model(x), model(x.unsqueeze(-1)))

    def test_dropout_is_between_the_layers(self):
        assert [layer.dropout.p for layer in Gru(layers=3, dropout=0.25).layers] == [0.25, 0.25, 0.0]

    def test_the_fingerprint_of_stored_profiles_and_checkpoints_is_kept(self):
        model, former = Gru(layers=2, dropout=0.25), Gru(layers=2, dropout=0.25)
        former.layers = nn.Sequential(*map(Layer, former.layers))
        assert structure_hash(model) == structure_hash(former)


class TestGraphNetwork:
    @pytest.fixture
    def model(self):
        torch.manual_seed(0)
        return GraphNetwork(nodes=7, width=8, rounds=2).eval()

    @pytest.fixture
    def graphs(self):
        return torch.randint(7, (3, 10, 2), generator=torch.Generator().manual_seed(0)).float()

    def test_messages_are_a_product_with_the_adjacency_matrix(self, model, graphs):
        adjacency = torch.zeros(3, 7, 7)
        for graph, edges in zip(adjacency, graphs.long(), strict=True):
            for one, other in edges.tolist():
                graph[one, other] += 1
                graph[other, one] += 1
        states = model.start.weight.expand(3 * 7, -1)
        for one in model.rounds:
            heard = (adjacency @ states.view(3, 7, -1)).reshape(21, -1)
            states = one.network((1 + one.own) * states + heard)
        wanted = model.fc(states.view(3, 7, -1).mean(1))
        assert torch.allclose(model(graphs), wanted, atol=1e-5)

    def test_the_numbers_of_nodes_and_the_order_of_edges_mean_nothing(self, model, graphs):
        numbers, order = torch.randperm(7), torch.randperm(10)
        renamed = numbers[graphs.long()].float()[:, order].flip(-1)
        assert torch.allclose(model(graphs), model(renamed), atol=1e-5)

    def test_missing_edges_and_whole_numbers(self, model, graphs):
        longer = torch.cat([graphs, torch.full((3, 4, 2), -1.0)], 1)
        assert torch.allclose(model(longer), model(graphs), atol=1e-6)
        assert torch.equal(model(graphs.long()), model(graphs))

    def test_graphs_of_a_batch_do_not_hear_each_other(self, model, graphs):
        alone = torch.cat([model(graph[None]) for graph in graphs])
        assert torch.allclose(model(graphs), alone, atol=1e-5)

    def test_its_work_is_counted_without_values(self):
        data = Data((torch.zeros(8, 10, 2), torch.arange(8) % 3), (torch.zeros(4, 10, 2), torch.arange(4) % 3))
        workload = Workload("g", model=Model(GraphNetwork, {"nodes": 7}), data=data, budget_samples=8, batch_sizes=(4,))
        work = open_algorithm("backprop", workload, 4).work()
        (forward,) = (phase for phase in work.phases if phase.phase == "forward")
        (other,) = (operation for operation in forward.operations if operation.kind == "other")
        nodes, edges, width, rounds = 4 * 7, 2 * 4 * 10, 32, 4
        assert other.flops == rounds * edges * width  # index_add
        # Of every round: index_select reads and writes the messages and reads where they are; index_add copies the
        # states, reads messages and places, and reads and writes each place. The first state is looked up once.
        gathered, added = 2 * 4 * edges * width + 8 * edges, 2 * 4 * nodes * width + 3 * 4 * edges * width + 8 * edges
        assert other.bytes == pytest.approx(rounds * (gathered + added), rel=0.05)

    def test_a_shape_that_does_not_describe_graphs_is_refused(self, model):
        with pytest.raises(WorkloadError, match=r"allowed: .*edges, 2"):
            model(torch.zeros(3, 10))
