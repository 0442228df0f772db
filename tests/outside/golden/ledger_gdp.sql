PRAGMA application_id = 1685090609;
PRAGMA user_version = 7;
BEGIN TRANSACTION;
CREATE TABLE events (seq INTEGER PRIMARY KEY, body TEXT NOT NULL, hash TEXT NOT NULL) STRICT;
INSERT INTO "events" VALUES(1,'{"day":"2026-11-22","fields":{"currency":"mu^2","dataset":"town","delta":"1/1000000","epsilon":"6","unit":"row, add-remove","units":"1431143912411619847"},"kind":"register"}','471e9bea48dfc0b1f8767dd8799d309f78efd635d67a95ed661ab6cbb347dd2c');
INSERT INTO "events" VALUES(2,'{"day":"2026-11-22","fields":{"currency":"mu^2","dataset":"town-2026","delta":"1/1000000","epsilon":"4","unit":"row, add-remove","units":"702007296832396370"},"kind":"register"}','9f6ee455aef24710684667ae52f9719c559c85e495726f94fc04b1c8ea71f287');
INSERT INTO "events" VALUES(3,'{"day":"2026-11-22","fields":{"dataset":"town-2026","parent":"town","units":"0"},"kind":"adopt"}','ce60017c1ca7b6dbcc22913b8116be0fe6d18a498cb7de49af9608135e707472');
INSERT INTO "events" VALUES(4,'{"day":"2026-11-22","fields":{"dataset":"town-2026","details":{"release":1,"version":"1"},"key":"039fbc569903fcf79e6902790239968293dde9e5fda2eccc99064fd29f2852de","native":{"gdp":"56028963825260677/1000000000000000000"},"parent":"town","units":"56028963825260677"},"kind":"reserve"}','707a29284f8859e6590f7f2f702a7d2b05e400117fbe0c1c231c0aed27157a4b');
INSERT INTO "events" VALUES(5,'{"day":"2026-11-22","fields":{"key":"039fbc569903fcf79e6902790239968293dde9e5fda2eccc99064fd29f2852de","sha256":"84dfd4d2530428628348392dccbe980d843abaa43990508ab9db1d802024a5e4","size":15,"source":"the bulk sampler of dpquery 0.1.0"},"kind":"commit"}','38bb7702d4b0abbef5e64a4a55ea08ae2c4e84887c1b501c03ec4698fd7e2784');
INSERT INTO "events" VALUES(6,'{"day":"2026-11-22","fields":{"dataset":"town-2026","details":{"release":1,"version":"1"},"key":"2b5a22476a0317eabb967eb18c85f94b4d0c452ea7b95d816e1fbb45b68e3cfb","native":{"pure":"1/2"},"parent":"town","units":"389241966475395527"},"kind":"reserve"}','b10d7aa0d09de5c28981c362b0e3b5a08d94a58640a2faf2ea7f92574a54b838');
INSERT INTO "events" VALUES(7,'{"day":"2026-11-22","fields":{"key":"2b5a22476a0317eabb967eb18c85f94b4d0c452ea7b95d816e1fbb45b68e3cfb"},"kind":"abandon"}','2aa4cf164e4337f2912fd7be061b3a41429741ee65ff87da4ea0d7a177cbfb17');
CREATE TABLE measurements (seq INTEGER PRIMARY KEY, payload BLOB NOT NULL) STRICT;
INSERT INTO "measurements" VALUES(5,X'0E6B5885000000005F74BDFB00000000B07D227201000000028787E8010000005390EC5E020000001C544A7F000000006D5DAFF500000000BF66146C01000000107079E2010000006179DE58020000002A3D3C79000000007C46A1EF00000000CD4F0666010000001E596BDC010000007062D05202000000');
CREATE TRIGGER events_keep BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'append only'); END;
CREATE TRIGGER events_stay BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'append only'); END;
CREATE TRIGGER measurements_keep BEFORE UPDATE ON measurements
    BEGIN SELECT RAISE(ABORT, 'append only'); END;
CREATE TRIGGER measurements_stay BEFORE DELETE ON measurements
    BEGIN SELECT RAISE(ABORT, 'append only'); END;
COMMIT;
