"""Every limit of size at which something that was asked for is refused, or left out of the search.

Memory and minutes are what they protect: of whoever runs the command, and from files of others. An
array of numbers takes 8 bytes a number. How long an optimiser searches, how much is computed at
once and how much is kept to be used again stand with the code that does so: they change how fast an
answer comes, or how good a strategy is, and not what can be asked.
"""

# --- files from outside ---------------------------------------------------------------------------
MAX_JSON_BYTES = 1 << 28  # of a plan or a manifest: a strategy's matrices are in it
MAX_JSON_VALUES = 1 << 24  # in such a file: each takes some sixty bytes in memory, and two in it
LARGEST_INTEGER = 1 << 40  # any integer in a plan, powers of two apart; and a seed
MAX_PARQUET_CHUNKS = 1 << 20  # row groups times columns of a file: its footer lists them
MAX_LINE = 2**20  # bytes of one line of the data: it is held whole

# --- specs ----------------------------------------------------------------------------------------
MAX_SPEC_BYTES = 10_000_000  # of a spec, and of a list of values in a file
MAX_SPEC_CHARACTERS = 10_000_000  # of the same, decoded
MAX_SPEC_DEPTH = 40  # levels of nesting: no spec has more
MAX_SPEC_ENTRIES = 1_000_000  # nodes of its YAML, every use of an alias counted
MAX_DESCRIPTIONS = 100_000  # of all descriptions: anchors repeat them
MAX_LISTED_VALUES = 2**23  # codes that groups and lists of values name: half a gigabyte
MAX_DECLARED_ROWS = 10**12  # records that a spec says there are
MAX_CODES = 2**20  # of one attribute; the domain as a whole may be as large as it likes
MAX_LEVELS = 32  # of the hierarchies of one attribute: each pair is compared line by line
MAX_PERSON_ROWS = 10_000  # numbers of rows of a person that are told apart
MAX_SUMMED_VALUE = 10**7  # that a record adds to a sum: times 2^36 records it fits 62 bits
MAX_WEIGHT_STEPS = 100_000  # that one record adds: their squares add up to 2^53 and less a batch
MAX_TABLES = 1_000_000  # of all items together
MAX_TABLE_QUERIES = 2**40  # of one table
MAX_DRAWN_FROM = 1_000  # attributes of which a threshold draws sets
MAX_DRAWN_SETS = 10_000  # of one threshold: each is found past all that are taken
MAX_DRAW_SUMS = 200_000  # by which the sets that can be drawn are counted
MAX_DRAW_SUM_BITS = 1 << 32  # of these sums together: half a gigabyte

# --- workloads and strategies ---------------------------------------------------------------------
MAX_DENSE_CLASSES = 8192  # of an attribute whose (n, n) matrices are held as arrays: 512 MB
MAX_RANGE_MEMBERS = 1 << 25  # of ranges over classes that are not in order, listed one by one
MAX_ATTRIBUTE_QUERIES = 1 << 26  # or its classes: each has its variance, which is held
MAX_TABLE_CELLS = 1 << 26  # of one table that is tabulated and measured
MAX_STRATEGY_CELLS = 1 << 28  # of all tables of a strategy, and its rows: at most MAX_COUNTED_CELLS
MAX_MATRIX_BYTES = 1 << 29  # of one matrix: of 8192 codes, whose inverse takes a minute
MAX_MATRICES_BYTES = 1 << 31  # of all matrices of a strategy
MAX_MARGINAL_SETS = 1 << 22  # of all sets that marginals measure: each is looked at
MAX_ALGEBRA_ATTRIBUTES = 20  # of one table in the algebra of marginals: its 2^20 subsets are listed
MAX_RESIDUAL_ATTRIBUTES = 12  # of one table of OPT_R: the 2^12 subsets below it have Grams each
MAX_MINIMAX_COEFFICIENTS = 1 << 24  # of the matrix that says what a budget does to a target
MAX_FACT_ATOMS = 1 << 20  # sets of codes that impossible combinations distinguish, multiplied
MAX_FACT_ROWS = 1 << 11  # equalities that answers are conditioned on: O(n^3), and n times answers
MAX_FACT_WORK = 1 << 36  # multiplications for all answers of a workload: some ten seconds
MAX_CLASSED_CELLS = 1 << 22  # that are sorted by the queries that count them
MAX_ORBIT_COMPONENTS = 1 << 12  # of interchangeable codes: each has a matrix of its own
MAX_CELL_CLASSES = 2048  # of cells no query tells apart: decompositions take O(n^3)
MAX_QUERIED_CLASSES = 1 << 14  # of which the answers of a basis of the queries are measured
MAX_CLASS_WORK = 1 << 37  # multiplications for the Gram of all queries: seconds
MAX_CLASS_ENTRIES = 1 << 24  # of the queries of one table over such classes, written out

# --- two products measured together, solved as one system -----------------------------------------
MAX_JOINT_MEASURED = 1 << 24  # over the attributes that are measured
MAX_JOINT_CELLS = 1 << 22  # of those, times the cells of the dense attributes, or the parts
MAX_JOINT_STACK = 1 << 25  # numbers of all stacks that are brought to triangular form
MAX_JOINT_ROWS = 1 << 24  # of a block: its variances are one tensor
MAX_JOINT_WORK = 1 << 36  # multiplications for the coefficients of a block: minutes
MAX_JOINT_CLASSES = 2048  # of an attribute that is measured: its basis takes O(n^3)

# --- figures that are exact within, and bounds or left out beyond ---------------------------------
MAX_EXPANDED_ROWS = 1 << 24  # distinct row values looked at for an exact maximum
MAX_COEFFICIENT_WORK = 1 << 34  # multiplications for the powers of a block's rows: about a minute
MAX_FOURTH_POWERS = 1 << 34  # queries times measured rows of one attribute

# --- counting -------------------------------------------------------------------------------------
MAX_COUNTED_CELLS = 2**28  # of all tables counted in one pass: 2 GiB
RECORD_BITS = 36  # fewer than 2^36 records, or steps of weights: more than there are people
MAX_STATE_BYTES = 2**30  # of the rows of persons held at a time, unless another limit is named

# --- relaxed adaptive projection ------------------------------------------------------------------
MAX_RAP_ROUNDS = 1_000
MAX_RAP_SELECTED = 1 << 12  # queries of a round: all pairs of them are compared
MAX_RAP_MEASURED = 1 << 16  # queries of all rounds together
MAX_RAP_AT_ONCE = 1 << 22  # queries that are measured where nothing is selected
MAX_RAP_TABLE_QUERIES = 1 << 26  # of one table: its answers are held at once, true and synthetic
MAX_RAP_FIT_NUMBERS = 1 << 25  # relaxed rows times classes: a fit holds several copies of them
MAX_RAP_PREDICATES = 1 << 28  # rows times predicates of one attribute: a gigabyte of float32
MAX_RELAXED_ROWS = 1 << 20
MAX_FINER_NUMBERS = 1 << 28  # of relaxed rows over the finer classes of later questions: a gigabyte

# --- adaptive measurement -------------------------------------------------------------------------
MAX_ADAPTIVE_TABLES = 1 << 15  # that may be measured: each is compared with the data in every round
MAX_ADAPTIVE_CELLS = 1 << 24  # of all of them: some seconds a round
MAX_ADAPTIVE_CLASSES = 1 << 17  # of all attributes together: a fit holds some 300 of each

# --- answers, columns and records made afterwards -------------------------------------------------
MAX_TREE_CELLS = 1 << 20  # of all tables of the junction tree: minutes to fit
MAX_QUERY_MATRIX_ENTRIES = 1 << 24  # of all query matrices of the graphical model, written out
MAX_FITTED_CELLS = 1 << 28  # of all tables that are fitted together: some eight gigabytes
MAX_FITTED_TABLE_CELLS = 1 << 22  # of one of them
MAX_AVERAGED_CELLS = 1 << 19  # that rows are fitted to for a column: two or three minutes at most
MAX_JOINT_COUNTS = 1 << 22  # cells of attributes whose tables are fitted as one
MAX_JOINT_COUNT_WORK = 1 << 25  # of those, times the tables that are measured: a minute or two
MAX_LABELLED_TABLES = 10_000  # of an item whose rows say in words what they count; else numbers do
MAX_MERGED_PAIRS = 1 << 22  # of rows of one group, whose covariances say what is precise enough
MAX_REPLICATED_NUMBERS = 1 << 27  # draws of noise times answers: half a gigabyte
MAX_UNASKED_RECORDS = 1 << 30  # synthetic records that are written where nobody said how many
