/* draw.h - handwritten-looking digits, drawn by code: those of ../digits.py, with other random numbers. */
#ifndef DRAW_H
#define DRAW_H

#include <math.h>
#include <stdint.h>

enum { SIDE = 28, DIGITS = 10 };

/* ---- random numbers: splitmix64 (Steele, Lea, Flood, OOPSLA 2014) ------------------------------------------- */

static uint64_t random_bits(uint64_t *state)
{
  uint64_t z = (*state += 0x9E3779B97F4A7C15u);

  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

static double uniform(uint64_t *state, double low, double high)
{
  return low + (high - low) * ((double)(random_bits(state) >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(uint64_t *state, double deviation)
{
  double radius = sqrt(-2.0 * log(uniform(state, 0.0, 1.0)));

  return deviation * radius * cos(uniform(state, 0.0, 6.283185307179586));
}

/* ---- strokes in a square of 100, y downwards ---------------------------------------------------------------- */

/* A line of two or three points, or an arc: centre, radii, first and last angle (0 is right, 90 is down). */
typedef struct {
  int digit, points; /* 0 points: an arc */
  double numbers[6];
} stroke;

static const stroke strokes[] = {
  {0, 0, {50, 50, 22, 32, 0, 360}},   {1, 3, {36, 30, 52, 16, 52, 84}},   {2, 0, {50, 36, 20, 20, -170, 40}},
  {2, 3, {64, 50, 32, 84, 70, 84}},   {3, 0, {48, 34, 19, 17, -160, 90}}, {3, 0, {48, 67, 21, 17, -90, 160}},
  {4, 3, {60, 16, 28, 60, 74, 60}},   {4, 2, {60, 40, 60, 86, 0, 0}},     {5, 3, {68, 17, 38, 17, 34, 48}},
  {5, 0, {48, 64, 21, 20, -130, 150}}, {6, 0, {70, 50, 37, 38, 180, 265}}, {6, 0, {50, 66, 18, 18, 0, 360}},
  {7, 3, {30, 18, 70, 18, 44, 86}},   {8, 0, {50, 33, 16, 16, 0, 360}},   {8, 0, {50, 67, 20, 18, 0, 360}},
  {9, 0, {50, 35, 18, 18, 0, 360}},   {9, 0, {30, 50, 38, 36, -20, 70}},
};

enum { STROKES = sizeof strokes / sizeof *strokes, ARC = 14 };

/* Lower each pixel's squared distance to that to the line from a to b. */
static void near_line(double *nearest, const double *a, const double *b)
{
  double dx = b[0] - a[0], dy = b[1] - a[1], length = dx * dx + dy * dy;

  for (int k = 0; k < SIDE * SIDE; ++k) {
    double x = (k % SIDE + 0.5) * 100 / SIDE - a[0], y = (k / SIDE + 0.5) * 100 / SIDE - a[1];
    double t = (x * dx + y * dy) / fmax(length, 1e-9), d;

    t = t < 0 ? 0 : t > 1 ? 1 : t;
    x -= t * dx;
    y -= t * dy;
    d = x * x + y * y;
    if (d < nearest[k]) nearest[k] = d;
  }
}

/* Draw a digit with a slant, size, place, pen width and noise of its own. */
static void draw(int digit, uint64_t *state, float *image)
{
  double angle = normal(state, 0.12), shear = normal(state, 0.15), c = cos(angle), s = sin(angle);
  double sx = uniform(state, 0.75, 1.1), sy = uniform(state, 0.75, 1.1);
  double left = 50 + uniform(state, -7, 7), top = 50 + uniform(state, -7, 7);
  double pen = uniform(state, 3.5, 6.5), strength = uniform(state, 0.7, 1), nearest[SIDE * SIDE];

  for (int k = 0; k < SIDE * SIDE; ++k) nearest[k] = 1e9;
  for (int i = 0; i < STROKES; ++i) {
    const double *n = strokes[i].numbers;
    double jx = normal(state, 0.8), jy = normal(state, 0.8), points[ARC][2];
    int count = strokes[i].points ? strokes[i].points : ARC;

    if (strokes[i].digit != digit) continue;
    for (int k = 0; k < count; ++k) {
      double turn = (n[4] + (n[5] - n[4]) * k / (ARC - 1)) * 3.141592653589793 / 180;
      double x = strokes[i].points ? n[2 * k] : n[0] + n[2] * cos(turn);
      double y = strokes[i].points ? n[2 * k + 1] : n[1] + n[3] * sin(turn);

      x = (x + jx - 50) * sx;
      y = (y + jy - 50) * sy;
      x += shear * y;
      points[k][0] = left + c * x - s * y;
      points[k][1] = top + s * x + c * y;
    }
    for (int k = 1; k < count; ++k) near_line(nearest, points[k - 1], points[k]);
  }
  for (int k = 0; k < SIDE * SIDE; ++k) {
    double ink = fmin(fmax((pen - sqrt(nearest[k])) / 3 + 0.5, 0), 1);

    image[k] = (float)fmin(fmax(ink * strength + normal(state, 0.06), 0), 1);
  }
}

#endif
