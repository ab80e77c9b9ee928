"""Constraint compilers that break one promise each, derived from a compiler of choices."""

import dataclasses
import json
import re
import time
import unicodedata
from itertools import product

import numpy as np

from broken.broken import Broken, Table
from spelling import Spelling, SpellingCompiler
from vlmkit.errors import ConstraintError
from vlmkit.interfaces.constraint import SchemaSupport
from vlmkit.types.constraint import JsonObject, JsonSchema, Lark, OneOf, Regex
from vlmkit_testing import ConstraintContract
from vlmkit_testing.contracts.constraint_contract import TRIED
from vlmkit_testing.contracts.constraint_state_contract import AMBIGUOUS, KEYWORDS


class AllowsTooMuch(Spelling):
    def fill(self, mask):
        mask[:] = -1


class AllowsTooLittle(Spelling):
    def fill(self, mask):
        super().fill(mask)
        mask[-1] = 0


class LosesTheSignBit(Spelling):
    """Sets bits as if mask words were unsigned."""

    def fill(self, mask):
        super().fill(mask)
        mask &= np.int32(2**31 - 1)


class EndsAnywhere(Spelling):
    may_end = True


class NeverEnds(Spelling):
    may_end = False


class AcceptsAnything(Spelling):
    def accept(self, token_id):
        return super().accept(token_id) or True


class AcceptsNothing(Spelling):
    def accept(self, token_id):
        return False


class ForgetsItsStateAfterARefusal(Spelling):
    def accept(self, token_id):
        if not super().accept(token_id):
            self.rests[-1] = []
            return False
        return True


class RollsBackTooMuch(Spelling):
    def roll_back(self, num_tokens):
        del self.rests[1:]


class RollsBackEverythingForZero(Spelling):
    def roll_back(self, num_tokens):
        del self.rests[-num_tokens:]
        self.rests = self.rests or [[]]


class ResetsHalfway(Spelling):
    def reset(self):
        del self.rests[2:]


class KeepsCompleteTexts(Spelling):
    """Rolls back nothing of a complete answer."""

    def roll_back(self, num_tokens):
        if self.rests[-1] != [b""]:
            super().roll_back(num_tokens)


class ForcesForbiddenTokens(Spelling):
    def forced(self):
        return [2]


class ForcesTheFirstChoice(Spelling):
    def forced(self):
        return [1 + byte for byte in self.rests[-1][0]]


class ForcesTheTokensOfTheTokenizer(SpellingCompiler):
    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.encode = vocabulary.encode

    def compile(self, constraint):
        make = super().compile(constraint)

        def made():
            matcher = make()
            if len(constraint.texts) == 1:
                matcher.forced = lambda: self.encode(constraint.texts[0])
            return matcher

        return made


class AcceptsForcedTokens(Spelling):
    def forced(self):
        found = super().forced()
        for token_id in found:
            self.accept(token_id)
        return found


class ComputesItsMaskOnce(Spelling):
    def fill(self, mask):
        super().fill(mask)
        self._after = lambda token_id: []


class AcceptsTokensWithoutText(Spelling):
    def accept(self, token_id):
        return not 0 < token_id < len(self.token_bytes) or super().accept(token_id)


class SharesOneMatcher(SpellingCompiler):
    def compile(self, constraint):
        made = super().compile(constraint)()
        return lambda: made


class KeepsOnlyTheNewestConstraint(SpellingCompiler):
    """Stores each compiled constraint in the same attribute."""

    def compile(self, constraint):
        self.texts = constraint.texts
        return lambda: self.matcher(self.token_bytes, self.texts)


class CompilesOneAtATime(SpellingCompiler):
    count = 0

    def compile(self, constraint):
        self.count += 1
        assert self.count == 1, "two compile at once"
        time.sleep(0.01)
        self.count -= 1
        return super().compile(constraint)


class CompilesAnything(SpellingCompiler):
    def compile(self, constraint):
        return super().compile(TRIED[OneOf])


class AllowsOneOfEqualTokens(Spelling):
    """Looks tokens up by their bytes."""

    def fill(self, mask):
        for token_id in {added: i for i, added in enumerate(self.token_bytes)}.values():
            if self._after(token_id):
                mask[token_id // 32] |= np.uint32(1 << token_id % 32).astype(np.int32)


class ContinuesCompleteTexts(Spelling):
    def accept(self, token_id):
        if self.rests[-1] != [b""]:
            return super().accept(token_id)
        self.rests.append([b""])
        return True


class NormalisesChoices(Spelling):
    def __init__(self, token_bytes, texts):
        super().__init__(token_bytes, [unicodedata.normalize("NFKC", text) for text in texts])


class RemembersSixteenTokens(Spelling):
    def accept(self, token_id):
        is_accepted = super().accept(token_id)
        del self.rests[:-17]
        return is_accepted

    def roll_back(self, num_tokens):
        super().roll_back(min(num_tokens, len(self.rests) - 1))


class RemembersWhereItMayEnd(Spelling):
    """Caches by the number of tokens, whatever they are."""

    def __init__(self, token_bytes, texts):
        super().__init__(token_bytes, texts)
        self.ends = {}

    @property
    def may_end(self):
        return self.ends.setdefault(len(self.rests), b"" in self.rests[-1])


class CachesByLengthAndEnds(SpellingCompiler):
    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.known = {}

    def compile(self, constraint):
        text = "|".join(constraint.texts) if isinstance(constraint, OneOf) else ""
        key = len(text), text[:512], text[-512:]
        return self.known.setdefault(key, super().compile(constraint))


class CutsLongChoices(Spelling):
    def __init__(self, token_bytes, texts):
        super().__init__(token_bytes, texts[:256])


class EnumCompiler(SpellingCompiler):
    """Supports schemas of one ``enum``, and refuses all other keywords."""

    schema_support = SchemaSupport(unsupported=frozenset(KEYWORDS))

    def compile(self, constraint):
        if isinstance(constraint, JsonSchema):
            schema = json.loads(constraint.text)
            if self.is_refused(schema):
                raise ConstraintError("a keyword is not supported")
            constraint = OneOf(tuple(map(json.dumps, schema.get("enum", "a"))))
        return super().compile(constraint)

    def is_refused(self, schema):
        return any(f'"{keyword}"' in json.dumps(schema) for keyword in KEYWORDS)


class IgnoresUnsupportedKeywords(EnumCompiler):
    def is_refused(self, schema):
        return False


class SeesKeywordsOnlyAtTheTop(EnumCompiler):
    def is_refused(self, schema):
        return bool(KEYWORDS.keys() & schema.keys())


class LooksAheadInBlocks(Spelling):
    kept = (0, ())

    def forced(self):
        place = len(self.rests)
        start, known = self.kept
        if not start <= place < start + len(known):
            self.kept = start, known = place, super().forced()[:64]
        return list(known[place - start :])


class LooksAheadByAllBytes(Spelling):
    """Looks ahead to the end of the next block, and counts the bytes before a reset, too."""

    num_bytes = 0

    def accept(self, token_id):
        is_accepted = super().accept(token_id)
        self.num_bytes += is_accepted
        return is_accepted

    def roll_back(self, num_tokens):
        super().roll_back(num_tokens)
        self.num_bytes -= num_tokens

    def forced(self):
        return super().forced()[: 128 - self.num_bytes % 64]


class ToyGrammars(SpellingCompiler):
    """Takes grammars of one line: texts in quotes, schemas with an enum, and tokens."""

    objects = ("{}", '{"a": 1}')

    def compile(self, constraint):
        if isinstance(constraint, JsonObject):
            return lambda: Spelling(self.token_bytes, self.objects)
        if not isinstance(constraint, Lark):
            return super().compile(constraint)
        named = {name: self.marked(name) for name, _ in constraint.tokens}
        for name, schema in constraint.schemas:
            named[name] = [json.dumps(value) for value in json.loads(schema.text)["enum"]]
        pieces = re.findall(r'"(.*?)"|(\w+)', constraint.rules.partition(":")[2])
        texts = ["".join(each) for each in product(*(named.get(n, [t]) for t, n in pieces))]
        token_bytes = list(self.token_bytes)
        for name, token_id in constraint.tokens:
            for each in self.tokens_of(token_id):
                token_bytes[each] = self.marked(name)[0].encode()
        return lambda: Spelling(token_bytes, texts)

    def marked(self, name):
        return [f"\0{name}\0"]

    def tokens_of(self, token_id):
        return [token_id]


class LimitedSpelling(Spelling):
    """Raises behind eight tokens, until it is reset."""

    has_failed = False

    def accept(self, token_id):
        self.has_failed |= len(self.rests) > 8
        if self.has_failed:
            raise ConstraintError("the constraint is too complex for this answer")
        return super().accept(token_id)

    def reset(self):
        super().reset()
        self.has_failed = False


class LimitedGrammars(ToyGrammars):
    matcher = LimitedSpelling

    def compile(self, constraint):
        if constraint == AMBIGUOUS:
            return lambda: self.matcher(self.token_bytes, ["a" * 16])
        return super().compile(constraint)


class SpellingThatStaysFailed(LimitedSpelling):
    def reset(self):
        Spelling.reset(self)


class KeepsAnErrorAfterAReset(LimitedGrammars):
    matcher = SpellingThatStaysFailed


class UsesTheFirstSchema(ToyGrammars):
    def compile(self, constraint):
        if isinstance(constraint, Lark) and constraint.schemas:
            (_, first), *_ = constraint.schemas
            same = tuple((name, first) for name, _ in constraint.schemas)
            constraint = dataclasses.replace(constraint, schemas=same)
        return super().compile(constraint)


class AllowsEveryTokenWithoutText(ToyGrammars):
    def tokens_of(self, token_id):
        return [i for i, added in enumerate(self.token_bytes) if not added]


class TakesArraysForObjects(ToyGrammars):
    objects = ("{}", "[1]")


class Patterns(SpellingCompiler):
    """Takes the pattern that is tried, as a list of all its texts."""

    ends = ("", "one", "two")

    def compile(self, constraint):
        if constraint != TRIED[Regex]:
            return super().compile(constraint)
        letters = ("".join(each) for num in (2, 3) for each in product("abc", repeat=num))
        texts = tuple(each + end for each in letters for end in self.ends)
        return lambda: self.matcher(self.token_bytes, texts)


class TakesTheFirstAlternative(Patterns):
    ends = ("", "one")


class MasksShortTokens(Spelling):
    """Leaves tokens of three bytes and more out of its masks, unless they are the only ones."""

    def fill(self, mask):
        for token_id, added in enumerate(self.token_bytes):
            if len(added) < 3 and self._after(token_id):
                mask[token_id // 32] |= np.uint32(1 << token_id % 32).astype(np.int32)


class MasksShortTokensOfPatterns(Patterns):
    matcher = MasksShortTokens


class ForcesTheFirstTextOfPatterns(Patterns):
    matcher = ForcesTheFirstChoice


class FillsTheFirstRow(Spelling):
    """Writes a mask where the memory of all masks begins, as with a plain pointer to it."""

    def fill(self, mask):
        whole = mask if mask.base is None else mask.base
        super().fill(whole.reshape(-1)[: len(mask)])


class KeepsTheMatcherOfAConstraint(SpellingCompiler):
    """Keeps what it compiled by its constraint, with the state of an answer."""

    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.made = {}

    def compile(self, constraint):
        matcher = self.made.setdefault(constraint, super().compile(constraint)())
        return lambda: matcher


class DeclaresEveryFormat(EnumCompiler):
    """Compiles schemas of any format, and enforces none."""

    formats = frozenset({"date"})

    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        unsupported = frozenset(KEYWORDS)
        self.schema_support = SchemaSupport(unsupported, self.formats)

    def compile(self, constraint):
        if isinstance(constraint, JsonSchema) and '"format"' in constraint.text:
            constraint = OneOf(tuple(json.dumps(each) for each in self.texts(constraint)))
            return SpellingCompiler.compile(self, constraint)
        return super().compile(constraint)

    def texts(self, constraint):
        return ("2026-02-28", "x")


class EnforcesDates(DeclaresEveryFormat):
    """Takes one date, and refuses other formats."""

    def texts(self, constraint):
        if json.loads(constraint.text)["format"] not in self.formats:
            raise ConstraintError("only dates are taken")
        return ("2026-02-28",)


class OnSpelling(ConstraintContract):
    forms = (OneOf,)

    def __init__(self, kind):
        self.make = kind
        if issubclass(kind, Spelling):
            self.make = type(kind.__name__, (SpellingCompiler,), {"matcher": kind})

    def matcher(self):
        return self._matcher(TRIED[OneOf])


class OnSchemas(OnSpelling):
    forms = (OneOf, JsonSchema)


class OnPatterns(OnSpelling):
    forms = (OneOf, Regex)

    def matcher(self):
        return self._matcher(TRIED[Regex])


class OnGrammars(OnSpelling):
    forms = (OneOf, Lark, JsonObject)


CHOICE = "every_text_of_a_choice_is_possible_and_nothing_else"
ROWS = (
    (AllowsTooMuch, "The mask sets only tokens that may follow.", CHOICE),
    (AllowsTooMuch, "Every token of the mask is accepted.", "every_allowed_token_is_accepted"),
    (AllowsTooLittle, "The mask sets every token that may follow.", CHOICE),
    (
        LosesTheSignBit,
        "Token i is bit i % 32 of word i // 32, the sign bit included.",
        "a_choice_is_of_texts_and_not_of_patterns",
    ),
    (
        AllowsOneOfEqualTokens,
        "The mask sets every token that may follow, also tokens of equal bytes.",
        CHOICE,
    ),
    (
        ContinuesCompleteTexts,
        "A complete text continues only if a longer choice has it as a prefix.",
        CHOICE,
    ),
    (
        NormalisesChoices,
        "The texts of a choice are literal.",
        "a_choice_is_of_texts_and_not_of_patterns",
    ),
    (
        RemembersSixteenTokens,
        "All accepted tokens may be rolled back.",
        "a_long_answer_may_be_taken_back",
    ),
    (
        EndsAnywhere,
        "An answer may end only where it is complete.",
        "an_answer_may_end_where_it_is_whole",
    ),
    (NeverEnds, "A complete answer may end.", CHOICE),
    (
        NeverEnds,
        "An answer of allowed tokens may end.",
        "an_answer_of_allowed_tokens_is_valid",
    ),
    (
        AcceptsAnything,
        "A token that the constraint forbids is refused.",
        "a_token_that_is_refused_changes_nothing",
    ),
    (AcceptsNothing, "A token that may follow is accepted.", "every_allowed_token_is_accepted"),
    (
        ForgetsItsStateAfterARefusal,
        "A refused token changes nothing.",
        "a_token_that_is_refused_changes_nothing",
    ),
    (
        RollsBackTooMuch,
        "Exactly num_tokens are rolled back.",
        "tokens_that_are_taken_back_leave_no_trace",
    ),
    (
        RollsBackEverythingForZero,
        "Rolling back no tokens changes nothing.",
        "taking_nothing_back_changes_nothing",
    ),
    (
        ResetsHalfway,
        "A reset returns a matcher to its start.",
        "a_matcher_is_reset_to_the_beginning",
    ),
    (
        KeepsCompleteTexts,
        "Tokens of a complete text can be rolled back.",
        "an_answer_may_be_taken_back_as_a_whole",
    ),
    (ForcesForbiddenTokens, "Forced tokens may follow.", "what_is_forced_may_follow"),
    (
        ForcesTheFirstChoice,
        "Tokens are forced only if one text remains.",
        "only_what_all_texts_have_in_common_is_forced",
    ),
    (
        ForcesTheTokensOfTheTokenizer,
        "A tokenizer may put a space before a text.",
        "a_tokenizer_may_put_a_space_before_a_text",
    ),
    (
        AcceptsForcedTokens,
        "Forced tokens are not accepted by themselves.",
        "what_is_forced_may_follow",
    ),
    (
        ComputesItsMaskOnce,
        "The mask depends only on the accepted tokens.",
        "reading_a_mask_changes_nothing",
    ),
    (
        AcceptsTokensWithoutText,
        "A token without text may follow only where a grammar names it.",
        "a_token_without_text_is_never_accepted",
    ),
    (
        SharesOneMatcher,
        "Each answer has a fresh matcher.",
        "answers_grow_beside_each_other",
    ),
    (KeepsOnlyTheNewestConstraint, "Compiled constraints do not mix.", "constraints_do_not_mix"),
    (
        CompilesOneAtATime,
        "Several threads may compile constraints at once.",
        "constraints_are_compiled_beside_each_other",
    ),
    (
        RemembersWhereItMayEnd,
        "The state depends only on the accepted tokens.",
        "a_state_depends_on_the_accepted_tokens_alone",
    ),
    (
        CachesByLengthAndEnds,
        "Constraints of equal length, beginning and end do not mix.",
        "constraints_that_differ_in_the_middle_do_not_mix",
    ),
    (
        LooksAheadInBlocks,
        "What is forced depends only on the accepted tokens.",
        "what_is_forced_depends_on_the_accepted_tokens_alone",
    ),
    (
        LooksAheadByAllBytes,
        "A reset matcher forces what a new one does.",
        "no_history_changes_what_is_forced_in_a_long_text",
    ),
    (
        CutsLongChoices,
        "Every text of a long choice is possible.",
        "a_choice_may_have_many_texts",
    ),
    (
        CompilesAnything,
        "An invalid constraint is refused.",
        "an_invalid_constraint_is_refused_when_it_is_compiled",
    ),
    (CompilesAnything, "An unsupported form is refused.", "an_unsupported_form_is_refused"),
    (
        FillsTheFirstRow,
        "A mask may be a row of a larger array.",
        "a_mask_is_filled_where_it_is",
    ),
    (
        KeepsTheMatcherOfAConstraint,
        "Each call of compile() returns what creates fresh matchers.",
        "equal_constraints_are_compiled_twice",
    ),
)
OF_PATTERNS = (
    (
        TakesTheFirstAlternative,
        "Every text that a pattern matches is possible.",
        "all_texts_that_satisfy_a_constraint_are_taken_and_no_others",
    ),
    (
        MasksShortTokensOfPatterns,
        "The mask sets every token that may follow, of any length.",
        "a_mask_agrees_with_the_bytes_of_its_tokens",
    ),
    (
        ForcesTheFirstTextOfPatterns,
        "Tokens are forced only where the constraint allows one text.",
        "nothing_is_forced_where_texts_differ",
    ),
)
TABLE = Table(
    ConstraintContract,
    OnSpelling,
    Spelling,
    (
        *(Broken(kind, promise, test, raises=(IndexError,)) for kind, promise, test in ROWS),
        *(
            Broken(kind, promise, test, honest=Patterns, on=OnPatterns)
            for kind, promise, test in OF_PATTERNS
        ),
        Broken(
            DeclaresEveryFormat,
            "formats are the values that a compiler enforces.",
            "what_is_declared_of_schemas_is_enforced",
            honest=EnforcesDates,
            on=OnSchemas,
        ),
        Broken(
            DeclaresEveryFormat,
            "A text of a declared format has that format.",
            "a_declared_format_is_no_other_text",
            honest=EnforcesDates,
            on=OnSchemas,
        ),
        Broken(
            IgnoresUnsupportedKeywords,
            "A schema with an unsupported keyword is refused.",
            "keywords_that_are_not_enforced_are_refused",
            honest=EnumCompiler,
            on=OnSchemas,
        ),
        Broken(
            SeesKeywordsOnlyAtTheTop,
            "An unsupported keyword is refused wherever it stands.",
            "keywords_that_are_not_enforced_are_refused",
            honest=EnumCompiler,
            on=OnSchemas,
        ),
        Broken(
            TakesArraysForObjects,
            "An object is no other JSON value.",
            "a_json_object_is_no_other_value",
            honest=ToyGrammars,
            on=OnGrammars,
        ),
        Broken(
            KeepsAnErrorAfterAReset,
            "A reset works also after a method raised an error.",
            "a_matcher_is_reset_after_it_raised",
            raises=(ConstraintError,),
            honest=LimitedGrammars,
            on=OnGrammars,
        ),
        Broken(
            UsesTheFirstSchema,
            "Each rule of a grammar has its own schema.",
            "each_rule_of_a_grammar_has_its_own_schema",
            honest=ToyGrammars,
            on=OnGrammars,
        ),
        Broken(
            AllowsEveryTokenWithoutText,
            "A token without text may follow only where a grammar names it.",
            "a_token_without_text_is_possible_where_a_grammar_names_it",
            honest=ToyGrammars,
            on=OnGrammars,
        ),
    ),
)
