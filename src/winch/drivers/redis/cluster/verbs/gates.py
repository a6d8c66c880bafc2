"""Gates in a cluster: all of them are at home."""

from winch.drivers.redis.verbs.gates import GateVerbs


class ClusterGateVerbs(GateVerbs):
    def __init__(self, base, handover):
        super().__init__(base)
