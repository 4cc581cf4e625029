"""Write the measured tables into README.md and the pages of docs."""
