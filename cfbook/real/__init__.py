"""The paper's question on real radiographs: NIH ChestX-ray14, which every reader can download."""
