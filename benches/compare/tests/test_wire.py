"""Messages byte for byte, and the SCRAM verifier."""

import unittest

from compare import access, wire


class Messages(unittest.TestCase):
    def test_a_length_counts_itself_and_the_body(self):
        self.assertEqual(wire.query("x"), b"Q\0\0\0\x06x\0")

    def test_an_answer_ends_in_its_tag_and_ready_for_query(self):
        self.assertEqual(wire.complete("COPY 2"), b"C\0\0\0\x0bCOPY 2\0Z\0\0\0\x05I")

    def test_a_parameter_is_bound_to_the_unnamed_statement(self):
        self.assertEqual(wire.with_parameter("q", b"ab"),
                         b"P\0\0\0\x09\0q\0\0\0" b"B\0\0\0\x12\0\0\0\0\0\x01\0\0\0\x02ab\0\0"
                         b"D\0\0\0\x06P\0" b"E\0\0\0\x09\0\0\0\0\0" b"S\0\0\0\x04")


class Verifiers(unittest.TestCase):
    def test_a_verifier_has_the_form_that_postgresql_stores(self):
        self.assertRegex(access.scram_verifier(), r"^SCRAM-SHA-256\$4096:[\w+/]{22}==\$[\w+/]{43}=:[\w+/]{43}=$")

    def test_a_verifier_depends_on_salt_and_password_only(self):
        self.assertEqual(access.scram_verifier("p", bytes(16)), access.scram_verifier("p", bytes(16)))
        self.assertNotEqual(access.scram_verifier("p", bytes(16)), access.scram_verifier("q", bytes(16)))
