// Package faults kills Dayfly's own processes at every step of every operation and holds the result against the guarantees:
// the campaign (random rounds, each with a seed that repeats it), extends that race their deadline, damaged data, and how
// late a machine dies when its enforcers are dead. It runs the real program, built with failpoints, and knows the product
// from outside only; so all of it is tests.
//
// To add an operation, add it to the list in operations_test.go with its check; a failpoint is found in the source by itself.
package faults
