"""What is shown, written and read by others."""

from mutation import Mutant

OUTPUT = (
    Mutant(
        "targets beyond the budget are no failure",
        "a script goes on to a release that the budget refuses, or that misses its targets",
        "PlanReport.targets_beyond_budget",
        "bool(self.least) and all(",
        "bool(self.least) and not all(",
        ("test_targets.py::test_targets_beyond_the_budget_are_priced_and_said_to_be_so",),
    ),
    Mutant(
        "the text of an unforeseen error is shown",
        "it may hold a record",
        "main",
        "internal error ({type(error).__name__})",
        "internal error ({type(error).__name__}: {error})",
        (
            "test_non_interference_failures.py::"
            "test_an_error_between_the_data_and_the_noise_says_nothing_of_the_data",
        ),
    ),
    Mutant(
        "an unforeseen error ends in a traceback",
        "it may hold a record",
        "main",
        "    except Exception as error:\n        _fail(",
        "    except ArithmeticError as error:\n        _fail(",
        (
            "test_non_interference_failures.py::"
            "test_an_error_between_the_data_and_the_noise_says_nothing_of_the_data",
        ),
    ),
    Mutant(
        "a crash writes its memory to the disk",
        "all records that are held lie there",
        "forbid_dumps",
        "    resource.setrlimit(resource.RLIMIT_CORE, (0, "
        "resource.getrlimit(resource.RLIMIT_CORE)[1]))\n",
        "    resource.getrlimit(resource.RLIMIT_CORE)\n",
        ("test_non_interference_failures.py::test_a_crash_leaves_no_core_dump",),
    ),
    Mutant(
        "the share that is done is that of the pass",
        "the share falls where persons take another pass, and the time left is wrong",
        "Work.report",
        "max(self._done, min(share, 1.0))",
        "min(share, 1.0)",
        (
            "test_progress.py::"
            "test_the_share_that_is_read_never_falls_whatever_the_files_and_passes",
        ),
    ),
    Mutant(
        "the share of a stage falls",
        "the bar runs back, and the time left is wrong",
        "progress.stage",
        "max(reached, first + (last - first) * share)",
        "first + (last - first) * share",
        ("test_progress.py::test_shares_of_stages_are_of_the_whole_and_never_fall",),
    ),
    Mutant(
        "progress goes to a pipe",
        "a log holds how far the data were read, and when",
        "shown_progress",
        "        yield\n        return\n",
        "        with reporting(say):\n            yield\n        return\n",
        ("test_cli.py::test_no_progress_goes_to_a_pipe",),
    ),
    Mutant(
        "a pickled plan is run",
        "a plan is code of whoever wrote it",
        "parsed",
        '    """\n    if sum(map(content.count',
        '    """\n    import pickle\n'
        '    if content[:1] == b"\\x80":\n'
        "        return pickle.loads(content)\n"
        "    if sum(map(content.count",
        ("test_hostile_plans.py::test_neither_a_plan_nor_a_spec_is_ever_run",),
    ),
    Mutant(
        "a spec's tags are run",
        "a spec is code of whoever wrote it",
        "read_yaml",
        "    return _Builder(file, problems).document(_events(text, file))\n",
        "    yaml.load(text, Loader=yaml.UnsafeLoader)\n"
        "    return _Builder(file, problems).document(_events(text, file))\n",
        ("test_hostile_plans.py::test_neither_a_plan_nor_a_spec_is_ever_run",),
    ),
    Mutant(
        "a spec's value lists are read from anywhere",
        "a release shows a file that it has no business with",
        "beside.read_file",
        "target.resolve().is_relative_to(inside)",
        "target.parent.exists()",
        ("test_spec_mistakes.py::test_files_outside_the_folder_are_never_read",),
    ),
    Mutant(
        "a manifest's files are read from anywhere",
        "a report shows a file that it has no business with",
        "manifest._facts",
        'item.file == f"{item.name}.parquet"',
        "True",
        ("test_release_manifest.py::test_a_damaged_manifest_is_told_apart",),
    ),
    Mutant(
        "standard errors are those of noise of half the variance",
        "every number seems better than it is",
        "standard_deviation",
        "return math.sqrt(2) * scale * 2.0**shift",
        "return scale * 2.0**shift",
        ("test_mechanism.py::test_the_standard_deviation_that_is_stated_is_that_of_what_is_drawn",),
    ),
    Mutant(
        "intervals under Gaussian noise are one-sided quantiles",
        "they cover less often than they say",
        "half_widths",
        "        return _times(std_errors, float(ndtri((1 + level) / 2)))",
        "        return _times(std_errors, float(ndtri(level)))",
        (
            "test_answer_span.py::"
            "test_noise_intervals_of_new_questions_cover_as_often_as_they_say[gaussian]",
        ),
    ),
    Mutant(
        "intervals under Laplace noise are one-sided quantiles",
        "they cover less often than they say",
        "intervals._tail",
        "    return 2 / np.pi * (density / s).imag.sum(axis=1), ",
        "    return 1 / np.pi * (density / s).imag.sum(axis=1), ",
        ("test_intervals.py::test_the_quantile_is_never_narrow_and_at_most_1_2_percent_wide",),
    ),
    Mutant(
        "intervals under Laplace noise take one law for all that share its power sums",
        "they cover less often than they say",
        "intervals._table",
        "    return values * (1 + INTERPOLATED + np.minimum(safety, LAW_SAFETY))",
        "    return values",
        ("test_intervals.py::test_the_quantile_is_never_narrow_and_at_most_1_2_percent_wide",),
    ),
    Mutant(
        "coefficients on the parts of a union are looked at before the dense axes are measured",
        "intervals are those of other noise than was added",
        "joint_covariances._on_part",
        "            out = (moved @ F.T).reshape(*out.shape[:2], -1)",
        "            out = (moved @ np.eye(*F.shape).T).reshape(*out.shape[:2], -1)",
        ("test_joint.py::test_variances_and_answers_equal_those_of_the_pseudo_inverse",),
    ),
    Mutant(
        "combinations with no estimate above zero have no row",
        "which rows are there tells of noise, and soon of data",
        "ItemRows.batches",
        "yield Batch(batch, ",
        "yield Batch(batch.filter(pa.array(joined.estimate > 0)), ",
        ("test_non_interference.py::test_every_combination_asked_for_has_a_row_whoever_is_in_it",),
    ),
    Mutant(
        "tables hold the statistics and metadata of another library",
        "what nobody looked at is published",
        "_metadata",
        '    return {"dpquery": json.dumps(content, sort_keys=True, ensure_ascii=False)}',
        "    return {\n"
        '        "host": os.uname().nodename,\n'
        '        "dpquery": json.dumps(content, sort_keys=True, ensure_ascii=False),\n'
        "    }",
        ("test_non_interference.py::test_a_published_file_holds_no_metadata_but_its_own",),
    ),
    Mutant(
        "the manifest names the machine",
        "who made a release, and where, is published",
        "manifest_of",
        "        tool=__version__,\n",
        "        tool=f\"{__version__} on {__import__('os').getcwd()}\",\n",
        (
            "test_release_protocol.py::"
            "test_the_data_are_copied_elsewhere_and_nothing_of_either_place_is_published",
        ),
    ),
    Mutant(
        "questions that were not measured are answered",
        "an answer without a measurement behind it has a made-up error",
        "check_answerable",
        "for block in blocks if not strategy.supports(block)",
        "for block in blocks if not strategy",
        (
            "test_answer.py::"
            "test_every_question_that_the_measurements_do_not_hold_is_named_at_its_line",
        ),
    ),
    Mutant(
        "errors are those of the noise that a release's folder claims",
        "a scale made smaller by hand is believed",
        "Release.noise_std",
        "            or not math.isclose(stated.scale, due.scale, rel_tol=1e-9)\n",
        "",
        ("test_answer.py::test_a_damaged_or_forged_release_is_refused[less noise]",),
    ),
    Mutant(
        "relaxed rows of another release are read",
        "answers are passed off as those of a release that they are not from",
        "read_relaxed",
        "        as_written = rows_digest(values) == digest and np.isfinite(values).all()\n",
        "        as_written = np.isfinite(values).all()\n",
        ("test_synthetic.py::test_relaxed_rows_of_another_release_are_refused",),
    ),
    Mutant(
        "a file without a mark is replaced by another",
        "synthetic records take the place of a ledger, and what was spent is forgotten",
        "replacing",
        "        elif mark is None and target.exists():\n",
        "        elif False:\n",
        ("test_outputs.py::test_no_file_takes_the_place_of_another_kind[records-state/ledger.db]",),
    ),
    Mutant(
        "hidden files in a release that is replaced are deleted",
        "a ledger that lies there is gone, and what was spent is forgotten",
        "_refuse_foreign",
        "for path in directory.iterdir()} - set(release.files))",
        "for path in directory.glob('[!.]*')} - set(release.files))",
        ("test_outputs.py::test_a_ledger_in_a_folder_to_be_replaced_is_kept",),
    ),
    Mutant(
        "synthetic records can reach the data",
        "what they are made of need not be noisy",
        "write_synthetic",
        "    values = [[code_texts(",
        "    from dpquery.measurement.counting.tabulate import tabulate as tabulate\n\n"
        "    values = [[code_texts(",
        ("test_architecture.py::test_only_measurement_can_reach_the_data[releases]",),
    ),
    Mutant(
        "the planner can reach the data",
        "which strategy is chosen tells of the data",
        "_takes_long",
        "    return max(",
        "    import pandas as pandas\n\n    return max(",
        (
            "test_architecture.py::test_the_package_keeps_the_rule"
            "[strategy_and_reconstruction_cannot_open_data]",
        ),
    ),
    Mutant(
        "an estimate at the limit of relative errors is published",
        "a row that is flagged as noisy is printed as if it were not",
        "_left_out",
        "relative >= rules.rel_error",
        "relative > rules.rel_error",
        ("test_publication.py::test_each_row_is_what_the_rules_say",),
    ),
    Mutant(
        "answers without known errors are published under a rule on errors",
        "nobody knows whether they are reliable",
        "_left_out",
        "np.ones(len(estimate), dtype=bool)",
        "np.zeros(len(estimate), dtype=bool)",
        ("test_publication.py::test_each_row_is_what_the_rules_say",),
    ),
    Mutant(
        "the rules of publication are in the manifest of every item or of none",
        "readers take the rules of one table for those of another",
        "read_workload",
        "publish=item.publish or publish",
        "publish=publish or item.publish",
        ("test_publication.py::test_an_item_has_its_own_rules_or_those_of_the_spec",),
    ),
    Mutant(
        "a damaged rule of publication is believed",
        "the statement says what no release does",
        "_rules_are_believable",
        "rules.round_to >= 1",
        "rules.round_to >= 0",
        ("test_publication.py::test_rules_that_no_release_states_are_refused",),
    ),
    Mutant(
        "the report draws answers that are left out of what is published",
        "a board sees what the rules of the release leave out",
        "answers.table_cells",
        "        value = published\n",
        "",
        ("test_report_pictures.py::test_what_is_not_published_has_no_mark",),
    ),
    Mutant(
        "bands in the report reach half as far up as the noise intervals",
        "estimates look better than they are",
        "marks._marks",
        "zip(xs, line.high[run], strict=True)",
        "zip(xs, (line.high[run] + line.value[run]) / 2, strict=True)",
        ("test_report_pictures.py::test_bands_are_the_intervals_of_the_file",),
    ),
    Mutant(
        "two labels of a picture stand on each other",
        "a reader takes one answer for another",
        "axes._fit",
        "earlier[1] + _GAP <= later[0]",
        "True",
        (
            "test_report_pictures.py::"
            "test_texts_are_inside_their_pictures_and_stand_apart_at_every_width",
        ),
    ),
)
