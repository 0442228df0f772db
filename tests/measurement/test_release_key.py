"""The key of a release never changes: under it the ledger holds what was paid for."""

from dataclasses import replace

import pytest
from pinned import PERSON, RELEASES

from dpquery.spec.parsing.read import parse

KEYS = {
    "product": "ab2f089d499099dc342ffebbdbcbffa41944d79095eb9d5030cd1a4da7a0eadd",
    "permuted columns": "91c3b20c97dee7cc67919df8571e9a0490adefac4e2a8eeb1fae65e33f78f3d5",
    "marginals": "c390d13076a7cc3089c4a1472810f4ab42fdc4db79651f593b8e6129402bfcba",
    "factors": "8daa7e872393c8c62b3bfbe910551c71a48711aa8719f380a99386d327fa0ae5",
    "residual": "42c2394aec12a2693124ab50ed07c0ff499efe8c75dbd5e705d2de53ce737505",
    "union": "39d77450e3f3c5b408cd0131d405590255d4bbadf3a4da0ebcce08e6839d3043",
    "workload": "622b91d938372c637610adefabca515af4b55806b4456e59f7c596c8769a1593",
    "sums": "e1fb73b2516a0ecd7e9d6cfcb21f9250297079d68912bdc34fbc291ceaa154b5",
    "gaussian noise": "a8ad86fe64a386089ef4ae826aac8a2e6901dc40aba2f0d31317e4fff978004f",
    "rounded gaussian noise": "1b242a918900895d75148d47c8e4f86e0ab7057c786af5c9af0e8770c356e28a",
    "release 2": "2e0e7b31f3e61fced07ba6dff1632e30525cbf47b695d5f46da3a48a8646946b",
    "persons": "9bc93aaf8cade9c02672991e103c89b6b5c373affb1420b482f04aa1c54b55e1",
    "persons, any rows": "472e0752523c1efdb838eee52c9c43e4f3029577d3d80bb968d7f9f459d05a6b",
    "persons, numbers of rows": "f6e511d2efb81299840bd246467001aad382fa4185b7a81cdec5e300c6b23856",
    "records replaced": "1dc0920b64515ef4696bd15672ba98e52bbb8067743daca073ff58c5262c676e",
    "a parent": "c390d13076a7cc3089c4a1472810f4ab42fdc4db79651f593b8e6129402bfcba",
    "RAP": "07a6086f8ff840cfde5480a721ab263c4d2a9cf84c93fa86d41d4fe856085d9f",
    "RAP, all at once": "e6466bf30008cb799a37d79d8b934a668b8dde0f3f9d0d269952859646ec8e80",
    "RAP, persons": "a5a34ca78a13184e5f702d5c8e138057c7595ff208e9b0e4fdfcdba527929e94",
    "RAP, persons, any rows": "dfb423b20bc72a6746ee30e508666a1012230401b9d643e112f87657b46e12a0",
    "RAP, a parent, release 3": "a756493feb4722f0d424bea44503104d35cfcf142731655d034fffe78b7bc10a",
    "adaptive": "12d4268b46a3c704e991abb93f5e93a3569d377e6b6621bf2d2ee6e0fef4427f",
    "adaptive, replaced": "b2755ef2c1399e9c7e4f65849886328dd8decc93e11fc696f9bc5b4a40efc099",
    "adaptive, persons": "4a385747e001192bfaf274e9721994e1bfc89fcadef2d3c57290a85bc2b86f2c",
    "adaptive, release 2": "2477e5cd22f23b2900f64a4e3e6f7f3248e4f0cbec33dd5d28c52f724418a7ce",
}


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_has_the_key_that_it_always_had(name):
    assert RELEASES[name].key == KEYS[name]


def test_every_release_here_has_its_key_on_record():
    assert KEYS.keys() == RELEASES.keys()


@pytest.mark.parametrize("name", ["persons", "RAP, persons"])
def test_a_plan_of_format_1_has_the_key_that_it_always_had(name):
    """Its text does not say what became a choice later."""
    old = PERSON.replace("other: drop\n", "").replace("show", "bin").replace(", keep: first", "")
    spec = parse(old, name="survey.yaml", files={}, first_edition=True)
    assert replace(RELEASES[name], spec=spec).key == KEYS[name]
