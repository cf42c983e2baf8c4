// Package seeds runs the programs that Dayfly was made for, as their authors published them: only the API's address is
// replaced and the variables that they leave to the reader are given. Beside them run programs of our own with the same
// shape, for a checkout that has nothing but this repository.
//
// To add one, put it into testdata and give its free variables in a test.
package seeds
