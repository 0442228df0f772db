"""The spec that `dpquery init` writes: complete, commented, and ready to plan."""

STARTER = """\
# yaml-language-server: $schema=workload.schema.json
#
# A spec for dpquery: what may be published about a file, and at what price in privacy.
# Everything here is declared, nothing is read from the data: write what you know of the file from
# its documentation, and never what you saw in it. Then:
#
#     dpquery plan workload.yaml            the best strategy and its expected errors; no data
#     dpquery release data.csv --epsilon 1  the tables, paid from the budget
#     dpquery error-report                  what each number is worth

dataset:
  id: my-survey            # names the people in the data: all their releases share one budget
  version: 1               # which file of them; a new version does not renew the budget
  # rows: about 50000      # from public knowledge: lets plan rehearse mechanisms that depend on it
  # parent: {id: my-panel, budget: {epsilon: 8, delta: 1e-9}}   # the same people are in other
                           # datasets: a second cap, on the releases of all that name this parent

privacy:
  unit: row                # one row is one person. If a person may have several rows:
                           #   unit: {person: person_id, max_rows: 3}
  neighbours: add-remove   # or replace, which keeps the number of rows public and costs double
  delta: 1e-9              # well below 1 / rows; leave it out (0) to allow Laplace noise only

budget:
  epsilon: 4               # the cap on all releases together; a release names its own share
  delta: 1e-9              # or, in zero-concentrated terms and without delta, {rho: 0.5}

# ---------------------------------------------------------------------------------- the columns
# One entry a column of the CSV file that a table needs, with every value that it may hold. A row
# with any other text is left out of all tables; `other: bin` counts it in a bin of its own.
domain:
  age: {range: [0, 114]}                      # whole numbers, both ends included
  sex: {values: [Female, Male]}               # texts as they stand in the file
  region:
    values: {1: North, 2: East, 3: South, 4: West}       # text in the file: label shown
    other: bin
  income:
    bins: [0, 10000, 20000, 50000, 100000, 1000000]      # from each edge up to below the next
    column: income_eur                        # the header, where it is not the attribute's name
  employed: boolean                           # yes/no, true/false, y/n, t/f or 1/0 in any case
  disabled: {boolean: {true: [D], false: [N, ""]}}       # or your own texts for yes and no
  ethnicity:                                  # several columns as one attribute with all their
    merge:                                    # combinations; other: bin goes with each column
      white: boolean
      black: boolean
      asian: boolean
  # county: {values_file: counties.txt}       # a file beside this one: value, or value,label

# --------------------------------------------------------------------------------- the questions
# Each item becomes one file of the release, under its name. Attributes that an item does not name
# are summed over.
workload:
  # product: a table with a query for every combination of what it asks of each attribute:
  #   identity (each value), total (all together), prefix (up to each value), all-ranges,
  #   identity+total, {width: 5} (every window of five), {ranges: [[0, 17], [18, 64]]},
  #   {groups: {label: [values]}}, {is: value}, {in: [values]}, {between: [first, last]};
  #   a list of these asks for all of them, one after the other.
  - name: age_by_sex
    description: Every single year of age, by sex and in total
    product: {age: identity, sex: identity+total}
    weight: 2                                 # its squared error counts twice in the plan

  - name: age_bands
    description: Age bands by region, for people in work
    product:
      age: [{ranges: [[0, 17], [18, 64], [65, 114]]}, total]
      region:
        groups:
          inland: [East, South]
          coast: [North, West]
          unknown: [other]
    where: {employed: yes}                    # what every record counted must meet as well

  - name: ethnicity
    description: Some ethnic groups, alone or combined
    product:
      ethnicity:
        groups:                               # conditions on merged columns: all of them, or any
          White alone: [{white: yes, black: no, asian: no}]
          Black or Asian: [{any: {black: yes, asian: yes}}]
      sex: identity

  # marginals: tables over subsets of attributes: {ways: 2}, {up_to: 3}, {max_cells: 5000} or
  #   {sets: [[age, sex], [region], []]}; `over` says which attributes, `predicates` what else
  #   than identity to ask of one.
  - name: pairs
    description: All two-way tables of five attributes; age up to each year
    marginals: {ways: 2, over: [age, sex, region, income, employed], predicates: {age: prefix}}

  # ranges: in one or more dimensions: all, prefix, {width: 5} or [[0, 17], [18, 64]].
  - name: age_by_income
    description: Every range of income among the young, those of working age and the old
    ranges: {age: [[0, 24], [25, 64], [65, 114]], income: all}

  # union: several items without names, in one file.
  - name: people
    description: Everybody, and adults by sex
    union:
      - product: {}
      - product: {sex: identity}
        where: {age: {between: [18, 114]}}

  # any_of: records that meet at least one of the conditions.
  - name: any_disadvantage
    description: Disabled or out of work, among adults
    any_of: {disabled: {is: yes}, employed: {is: no}}
    where: {age: {between: [18, 114]}}

  # threshold: records that meet at least r of the targets, each a value or a group of values;
  #   `targets: all` (or none given) asks for every combination of values. Random sets of k
  #   attributes: {r: 2, k: 3, sample: 16, seed: 0}, also with `over`, `max_cells` and
  #   `distribution` (uniform, zipf or geometric: the first attributes are drawn most often).
  - name: two_of_three
    description: At least two of disabled, out of work and on a low income
    threshold:
      r: 2
      of: [disabled, employed, income]
      targets: {disabled: yes, employed: no, income: {between: [0, 10000]}}
"""
