// Package golden compares the output of a test with a file of testdata, or with a generated section of a page. With
// the flag -rewrite of go test it writes the file or the section instead.
//
// It imports the standard library alone. Only tests import it: in a program, -rewrite would become a flag of the
// program.
package golden
