"""What kernel belief propagation is compared with, over the same graphs, evidence and beliefs."""
