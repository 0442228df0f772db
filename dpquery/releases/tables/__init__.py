"""The file of one workload item: labels, columns, rows, and the errors of the answers."""
