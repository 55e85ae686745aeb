"""An interpreter of a small Forth: numbers, a stack, words that are defined
with : and ;, if else then, do loop, begin until, and strings with .".

  glovebox run --file examples/data/primes.fth examples/forth.py primes.fth

Expect exit code 0 and what the Forth program prints. A mistake in it gives one
line on standard error and exit code 1.
"""

import operator
import sys


class ForthError(Exception):
    pass


def divide(a, b):
    if b == 0:
        raise ForthError("division by zero")
    return a // b


def modulo(a, b):
    return a - b * divide(a, b)


BINARY = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": divide, "mod": modulo,
    "=": lambda a, b: -(a == b), "<": lambda a, b: -(a < b), ">": lambda a, b: -(a > b),
    "and": operator.and_, "or": operator.or_,
}


class Forth:
    def __init__(self, out):
        self.stack, self.loops, self.words, self.out = [], [], {}, out

    def pop(self):
        if not self.stack:
            raise ForthError("the stack is empty")
        return self.stack.pop()

    def run(self, tokens, i=0, end=None):
        """Runs tokens[i:end]; a nested structure is run by recursion."""
        end = len(tokens) if end is None else end
        while i < end:
            word = tokens[i]
            if word == ":":
                close = tokens.index(";", i)
                self.words[tokens[i + 1]] = tokens[i + 2:close]
                i = close
            elif word == "if":
                otherwise, then = self.match(tokens, i, "if", "then", "else")
                if self.pop():
                    self.run(tokens, i + 1, otherwise if otherwise else then)
                elif otherwise:
                    self.run(tokens, otherwise + 1, then)
                i = then
            elif word == "do":
                _, close = self.match(tokens, i, "do", "loop")
                index, limit = self.pop(), self.pop()
                while index < limit:
                    self.loops.append(index)
                    self.run(tokens, i + 1, close)
                    index = self.loops.pop() + 1
                i = close
            elif word == "begin":
                _, close = self.match(tokens, i, "begin", "until")
                while True:
                    self.run(tokens, i + 1, close)
                    if self.pop():
                        break
                i = close
            else:
                self.word(word)
            i += 1

    @staticmethod
    def match(tokens, i, opening, closing, middle=None):
        depth, between = 0, None
        for j in range(i, len(tokens)):
            if tokens[j] == opening:
                depth += 1
            elif tokens[j] == middle and depth == 1:
                between = j
            elif tokens[j] == closing:
                depth -= 1
                if depth == 0:
                    return between, j
        raise ForthError(f"{opening} without {closing}")

    def word(self, word):
        if word in self.words:
            self.run(self.words[word])
        elif word in BINARY:
            b, a = self.pop(), self.pop()
            self.stack.append(BINARY[word](a, b))
        elif word == "dup":
            self.stack.append(self.stack[-1] if self.stack else self.pop())
        elif word == "drop":
            self.pop()
        elif word == "swap":
            b, a = self.pop(), self.pop()
            self.stack += [b, a]
        elif word == "over":
            b, a = self.pop(), self.pop()
            self.stack += [a, b, a]
        elif word == "i":
            self.stack.append(self.loops[-1])
        elif word == ".":
            self.out.write(f"{self.pop()} ")
        elif word == "cr":
            self.out.write("\n")
        elif word.startswith('."'):
            self.out.write(word[3:-1])
        else:
            try:
                self.stack.append(int(word))
            except ValueError:
                raise ForthError(f"unknown word {word}") from None


def tokenize(text):
    tokens = []
    for line in text.splitlines():
        line = line.split("\\")[0]
        while '."' in line:
            before, rest = line.split('."', 1)
            string, line = rest.split('"', 1)
            tokens += before.split() + [f'."{string}"']
        tokens += line.split()
    return tokens


try:
    with open(sys.argv[1], encoding="utf-8") as source:
        Forth(sys.stdout).run(tokenize(source.read()))
except ForthError as error:
    sys.exit(f"forth: {error}")
