"""The file of one workload item: labels, columns, rows, and what each answer is worth."""
