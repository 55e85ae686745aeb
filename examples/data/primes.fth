\ Primes below 100 by trial division, then the first factorials.
: square dup * ;
: prime? \ n -- flag
  dup 2 < if drop 0 else
    2 begin
      over over square < if drop drop -1 -1 else
        over over mod 0 = if drop drop 0 -1 else 1 + 0 then
      then
    until
  then ;
: primes 0 do i prime? if i . then loop cr ;
: factorial 1 swap 1 + 1 do i * loop ;
." primes: " 100 primes
." factorials: " 11 1 do i factorial . loop cr
