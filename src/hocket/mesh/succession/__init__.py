"""Successors of the coordinator, live: named nodes keep its entries and promise not to vote (`witness`), the
coordinator has its decisions confirmed (`leading`), and one of them follows it when it is silent (`standing`).
"""
